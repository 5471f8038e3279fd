# bash completion for nccl-ha: the program itself says what can follow.

_nccl_ha() {
  local current=${COMP_WORDS[COMP_CWORD]} word
  local -a words=("${COMP_WORDS[@]:1:COMP_CWORD}")
  COMPREPLY=()
  while IFS= read -r word; do
    if [ "$word" = "@file" ]; then
      compopt -o filenames 2>/dev/null
      while IFS= read -r word; do
        COMPREPLY+=("$word")
      done < <(compgen -f -- "$current")
    else
      [ "${word%=}" = "$word" ] || compopt -o nospace 2>/dev/null
      COMPREPLY+=("$word")
    fi
  done < <("${COMP_WORDS[0]}" complete -- "${words[@]}" 2>/dev/null)
}

complete -F _nccl_ha nccl-ha

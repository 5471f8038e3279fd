# bash completion for nccl-ha: the program itself says what can follow.

_nccl_ha() {
  local current=${COMP_WORDS[COMP_CWORD]} word whole last=
  local -a words=()
  # Bash takes words apart at = and : and replaces the last part only; the program knows whole words.
  for word in "${COMP_WORDS[@]:1:COMP_CWORD}"; do
    if [ ${#words[@]} -gt 0 ] && { [[ $word == [=:]* ]] || [[ $last == [=:] ]]; }; then
      words[${#words[@]} - 1]+=$word
    else
      words+=("$word")
    fi
    last=$word
  done
  [[ $current == [=:] ]] && current=
  whole=${words[${#words[@]} - 1]}
  COMPREPLY=()
  while IFS= read -r word; do
    if [ "$word" = "@file" ]; then
      compopt -o filenames 2>/dev/null
      while IFS= read -r word; do
        COMPREPLY+=("$word")
      done < <(compgen -f -- "$current")
    else
      [ "${word%=}" = "$word" ] || compopt -o nospace 2>/dev/null
      COMPREPLY+=("${word#"${whole%"$current"}"}")
    fi
  done < <("${COMP_WORDS[0]}" complete -- "${words[@]}" 2>/dev/null)
}

complete -F _nccl_ha nccl-ha

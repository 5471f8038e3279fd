# bash completion for nccl-ha. Options are read from the program's own --help, so they fit it.

_nccl_ha() {
  local program=${COMP_WORDS[0]} current=${COMP_WORDS[COMP_CWORD]} previous= command= word index
  [ "$COMP_CWORD" -gt 0 ] && previous=${COMP_WORDS[COMP_CWORD - 1]}
  for ((index = 1; index < COMP_CWORD; index++)); do
    word=${COMP_WORDS[index]}
    if [ "${word#-}" = "$word" ]; then
      command=$word
      break
    fi
  done
  COMPREPLY=()
  if [ -z "$command" ]; then
    mapfile -t COMPREPLY < <(compgen -W "perf info check lab relay agent sim trace stat top tune report --help --version" -- "$current")
    return
  fi
  if [ "$command" = lab ]; then
    _nccl_ha_lab "$program" "$current"
    return
  fi
  if [ "$command" = trace ]; then
    _nccl_ha_trace "$program" "$current" "$previous"
    return
  fi
  if [ "$command" = agent ]; then
    _nccl_ha_agent "$program" "$current" "$previous"
    return
  fi
  case "$previous" in
    --plugin | --against | --libnccl | --json)
      compopt -o filenames 2>/dev/null
      mapfile -t COMPREPLY < <(compgen -f -- "$current")
      case "$previous" in
        --against | --plugin)
          mapfile -t -O "${#COMPREPLY[@]}" COMPREPLY < <(compgen -W "socket ib" -- "$current")
          ;;
      esac
      return
      ;;
    --type | -d)
      mapfile -t COMPREPLY < <(compgen -W "int8 uint8 int32 int64 float double" -- "$current")
      return
      ;;
    --op | -o)
      mapfile -t COMPREPLY < <(compgen -W "sum min max" -- "$current")
      return
      ;;
  esac
  if [ "${current#-}" != "$current" ]; then
    local options
    options=$("$program" "$command" --help 2>/dev/null | grep -oE -- '--[a-z][a-z-]+' | sort -u)
    mapfile -t COMPREPLY < <(compgen -W "$options" -- "$current")
  elif [ "$command" = perf ]; then
    mapfile -t COMPREPLY < <(compgen -W "all_reduce all_gather reduce_scatter broadcast alltoall
      sendrecv pt2pt latency" -- "$current")
  fi
}

# The lab has subcommands of its own.
_nccl_ha_lab() {
  local program=$1 current=$2 verb= index
  for ((index = 2; index < COMP_CWORD; index++)); do
    [ "${COMP_WORDS[index]}" = lab ] || { verb=${COMP_WORDS[index]}; break; }
  done
  case "$verb:$current" in
    :*)
      mapfile -t COMPREPLY < <(compgen -W "run roce cut heal slow lose mtu kill show stop enter list clean
        --help" -- "$current")
      ;;
    *:-*)
      mapfile -t COMPREPLY < <(compgen -W "$("$program" lab "$verb" --help 2>/dev/null |
        grep -oE -- '--[a-z][a-z-]+' | sort -u)" -- "$current")
      ;;
    run:*)
      mapfile -t COMPREPLY < <(compgen -W "pair rails-4x2 islands ring-4 line-3 star-3" -- "$current")
      ;;
  esac
}

# So has the trace.
_nccl_ha_trace() {
  local program=$1 current=$2 previous=$3 verb= index
  for ((index = 2; index < COMP_CWORD; index++)); do
    [ "${COMP_WORDS[index]}" = trace ] || { verb=${COMP_WORDS[index]}; break; }
  done
  case "$verb:$current" in
    :*)
      mapfile -t COMPREPLY < <(compgen -W "dump show summary export merge critical plot --help" -- "$current")
      ;;
    *:-*)
      mapfile -t COMPREPLY < <(compgen -W "$("$program" trace "$verb" --help 2>/dev/null |
        grep -oE -- '--[a-z][a-z-]+' | sort -u)" -- "$current")
      ;;
    *)
      if [ "$previous" = --format ]; then
        mapfile -t COMPREPLY < <(compgen -W "perfetto" -- "$current")
      else
        compopt -o filenames 2>/dev/null
        mapfile -t COMPREPLY < <(compgen -f -- "$current")
      fi
      ;;
  esac
}

# So does the agent; without one it serves.
_nccl_ha_agent() {
  local program=$1 current=$2 previous=$3 verb= index
  for ((index = 2; index < COMP_CWORD; index++)); do
    case "${COMP_WORDS[index]}" in
      status | simulate-switch | make-key) verb=${COMP_WORDS[index]}; break ;;
    esac
  done
  case "$previous" in
    --settings | --keys | make-key | --dir)
      compopt -o filenames 2>/dev/null
      mapfile -t COMPREPLY < <(compgen -f -- "$current")
      return
      ;;
  esac
  case "$verb:$current" in
    *:-*)
      mapfile -t COMPREPLY < <(compgen -W "$("$program" agent $verb --help 2>/dev/null |
        grep -oE -- '--[a-z][a-z-]+' | sort -u)" -- "$current")
      ;;
    :*)
      mapfile -t COMPREPLY < <(compgen -W "status simulate-switch make-key --settings --dir --check --help" -- "$current")
      ;;
    simulate-switch:*)
      mapfile -t COMPREPLY < <(compgen -f -- "$current")
      ;;
  esac
}

complete -F _nccl_ha nccl-ha

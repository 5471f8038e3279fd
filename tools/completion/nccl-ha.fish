# fish completion for nccl-ha: the program itself says what can follow.

function __nccl_ha_complete
    set -l words (commandline -opc) (commandline -ct)
    for word in (command $words[1] complete -- $words[2..-1] 2>/dev/null)
        if test "$word" = "@file"
            __fish_complete_path (commandline -ct)
        else
            echo $word
        end
    end
end

complete -c nccl-ha -f -a '(__nccl_ha_complete)'

# Fish completion for octile. The command itself says what may follow, so this is never out of date.
function __octile_complete
    set -l words (commandline -opc) (commandline -ct)
    $words[1] complete -- $words[2..-1] 2>/dev/null
end
# Files are offered where the command offers nothing.
complete -c octile -n 'test -n "$(__octile_complete)"' -f -a '(__octile_complete)'

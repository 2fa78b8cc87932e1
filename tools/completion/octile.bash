# Bash completion for octile. It asks the command for its help, so it is never out of date.
_octile() {
  local current=${COMP_WORDS[COMP_CWORD]} help
  local -a path=()
  local word
  for word in "${COMP_WORDS[@]:1:COMP_CWORD-1}"; do
    [[ $word == -* ]] && break
    path+=("$word")
    # Only `octile bench` and `octile cache` have subcommands; all other words are arguments.
    [[ ${path[0]} == @(bench|cache) && ${#path[@]} -lt 2 ]] || break
  done
  help=$("${COMP_WORDS[0]}" "${path[@]}" --help 2>/dev/null) || return 0
  if [[ $current == -* ]]; then
    help=$(grep -oE '^ +(-[a-z],)?--[a-z-]+' <<<"$help" | grep -oE -e '--[a-z-]+')
  else
    help=$(sed -n '/^Subcommands:/,/^$/s/^  \([a-z]\{1,\}\) .*/\1/p' <<<"$help")
  fi
  mapfile -t COMPREPLY < <(compgen -W "$help" -- "$current")
}
complete -o default -F _octile octile

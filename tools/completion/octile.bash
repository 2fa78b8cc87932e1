# bash completion for octile: asks the command itself, so that it cannot fall behind it.
_octile() {
  local current=${COMP_WORDS[COMP_CWORD]} help
  local -a path=()
  local word
  for word in "${COMP_WORDS[@]:1:COMP_CWORD-1}"; do
    [[ $word == -* ]] && break
    path+=("$word")
    # Below `octile cache VERB` and the other subcommands there is nothing but arguments.
    [[ ${path[0]} == cache && ${#path[@]} -lt 2 ]] || break
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

# Bash completion for octile. The command itself says what may follow, so this is never out of date.
_octile() {
  local line
  # Bash takes = and : for ends of words; the command takes them as part of one.
  local typed=${COMP_LINE:0:COMP_POINT} current=${COMP_WORDS[COMP_CWORD]}
  local -a words=("${COMP_WORDS[@]:1:COMP_CWORD}")
  COMPREPLY=()
  if declare -F _get_comp_words_by_ref >/dev/null && [[ -n $typed ]]; then
    local cword
    _get_comp_words_by_ref -n =: -w words -i cword -c current
    words=("${words[@]:1:cword}")
  fi
  while IFS= read -r line; do
    # What precedes the last : or = of the typed word stays on the line.
    if [[ $line == *[:=]* && $current == *[:=]* ]]; then line=${line#"${current%"${current##*[:=]}"}"}; fi
    # A value with spaces is one word in quotes.
    if [[ $line == *' '* ]]; then line=$(printf '%q' "$line"); fi
    COMPREPLY+=("$line")
  done < <("${COMP_WORDS[0]}" complete -- "${words[@]}" 2>/dev/null)
}
complete -o default -F _octile octile

// Package completion holds the scripts with which a shell completes the words of our programs. The words come from the
// program itself, run with --generate-bash-completion as urfave/cli wants it, so the scripts never grow old.
package completion

import "strings"

// Shells are those there is a script for. That of fish is made by the library from the app.
var Shells = []string{"bash", "zsh", "fish"}

const bash = `_NAME() {
  local cur words
  cur="${COMP_WORDS[COMP_CWORD]}"
  words=("${COMP_WORDS[@]:0:COMP_CWORD}")
  [[ "$cur" == -* ]] && words+=("$cur")
  COMPREPLY=($(compgen -W "$("${words[@]}" --generate-bash-completion 2>/dev/null)" -- "$cur"))
}
complete -o bashdefault -o default -F _NAME NAME
`

const zsh = `#compdef NAME
_NAME() {
  local -a opts
  local cur=${words[-1]}
  if [[ "$cur" == -* ]]; then
    opts=("${(@f)$(${words[@]:0:#words[@]-1} ${cur} --generate-bash-completion 2>/dev/null)}")
  else
    opts=("${(@f)$(${words[@]:0:#words[@]-1} --generate-bash-completion 2>/dev/null)}")
  fi
  [[ -n "${opts[1]}" ]] && _describe values opts || _files
}
compdef _NAME NAME
`

// Script is the script of a program for bash or zsh, and "" for other shells.
func Script(shell, program string) string {
	switch shell {
	case "bash":
		return strings.ReplaceAll(bash, "NAME", program)
	case "zsh":
		return strings.ReplaceAll(zsh, "NAME", program)
	}
	return ""
}

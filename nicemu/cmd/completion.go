package cmd

import (
	"fmt"

	"github.com/urfave/cli/v2"

	"github.com/metaroce/metaroce/nicemu/fail"
)

// The words come from the program itself, so the scripts never grow old.
const bashCompletion = `_nicemu() {
  local cur words
  cur="${COMP_WORDS[COMP_CWORD]}"
  words=("${COMP_WORDS[@]:0:COMP_CWORD}")
  [[ "$cur" == -* ]] && words+=("$cur")
  COMPREPLY=($(compgen -W "$("${words[@]}" --generate-bash-completion 2>/dev/null)" -- "$cur"))
}
complete -o bashdefault -o default -F _nicemu nicemu
`

const zshCompletion = `#compdef nicemu
_nicemu() {
  local -a opts
  local cur=${words[-1]}
  if [[ "$cur" == -* ]]; then
    opts=("${(@f)$(${words[@]:0:#words[@]-1} ${cur} --generate-bash-completion 2>/dev/null)}")
  else
    opts=("${(@f)$(${words[@]:0:#words[@]-1} --generate-bash-completion 2>/dev/null)}")
  fi
  [[ -n "${opts[1]}" ]] && _describe values opts || _files
}
compdef _nicemu nicemu
`

func (e *env) completionCommand() *cli.Command {
	return &cli.Command{
		Name: "completion", Usage: "print the completion script of a shell", ArgsUsage: "bash|zsh|fish",
		Description:  example("source <(nicemu completion bash)"),
		BashComplete: completeWords(func() []string { return []string{"bash", "zsh", "fish"} }),
		Action: func(c *cli.Context) error {
			switch c.Args().First() {
			case "bash":
				fmt.Fprint(e.out, bashCompletion)
			case "zsh":
				fmt.Fprint(e.out, zshCompletion)
			case "fish":
				text, err := e.app().ToFishCompletion()
				if err != nil {
					return err
				}
				fmt.Fprint(e.out, text)
			default:
				return fail.Usagef("which shell? bash, zsh or fish")
			}
			return nil
		},
	}
}

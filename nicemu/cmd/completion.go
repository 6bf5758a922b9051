package cmd

import (
	"fmt"

	"github.com/urfave/cli/v2"

	"github.com/metaroce/metaroce/daemon/fail"
	"github.com/metaroce/metaroce/internal/completion"
)

func (e *env) completionCommand() *cli.Command {
	return &cli.Command{
		Name: "completion", Usage: "print the completion script of a shell", ArgsUsage: "bash|zsh|fish",
		Description:  example("source <(nicemu completion bash)"),
		BashComplete: completeWords(func() []string { return completion.Shells }),
		Action: func(c *cli.Context) error {
			switch shell := c.Args().First(); shell {
			case "bash", "zsh":
				fmt.Fprint(e.out, completion.Script(shell, "nicemu"))
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

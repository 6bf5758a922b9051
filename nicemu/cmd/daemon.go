package cmd

import (
	"github.com/urfave/cli/v2"

	"github.com/metaroce/metaroce/nicemu/fail"
	"github.com/metaroce/metaroce/nicemu/lab"
	"github.com/metaroce/metaroce/nicemu/serve"
)

func (e *env) daemonCommand() *cli.Command {
	return &cli.Command{
		Name: lab.DaemonCommand, Hidden: true, Usage: "serve a configuration that `up` or `lab up` wrote", ArgsUsage: "FILE",
		Action: func(c *cli.Context) error {
			if c.Args().Len() != 1 {
				return fail.Usagef("which configuration?")
			}
			return serve.Run(c.Context, c.Args().First())
		},
	}
}

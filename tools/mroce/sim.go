package main

import (
	"github.com/urfave/cli/v2"

	"github.com/metaroce/metaroce/daemon/fail"
)

func (e *env) simCommand() *cli.Command {
	cmd := &cli.Command{
		Name: "sim", Usage: "the simulator: networks of up to a million endpoints in virtual time", Subcommands: []*cli.Command{
			e.simRunCommand(), e.simPlansCommand(), e.simShowCommand(), e.simReportCommand(), e.simCompareCommand(),
			e.simScaleCommand(), e.simCheckCommand(), e.simFiguresCommand(), e.simSweepCommand(), e.simTaskCommand(),
		},
		Action: func(c *cli.Context) error {
			if c.Args().Present() {
				return fail.Usagef("no command %q; see mroce sim --help", c.Args().First())
			}
			return cli.ShowSubcommandHelp(c)
		},
	}
	for _, c := range cmd.Subcommands {
		c.OnUsageError = func(_ *cli.Context, err error, _ bool) error { return fail.Usagef("%w; see mroce sim --help", err) }
	}
	return cmd
}

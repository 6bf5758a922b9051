package cmd

import (
	"github.com/urfave/cli/v2"

	"github.com/metaroce/metaroce/daemon/fail"
	"github.com/metaroce/metaroce/daemon/serve"
	"github.com/metaroce/metaroce/nicemu/ports"
)

func (e *env) daemonCommand() *cli.Command {
	return &cli.Command{
		Name: serve.DaemonCommand, Hidden: true, Usage: "serve a configuration that `up` or `lab up` wrote", ArgsUsage: "FILE",
		Flags: []cli.Flag{&cli.BoolFlag{Name: "recorded", Usage: "begin once a byte on stdin says that the process is recorded"}},
		Action: func(c *cli.Context) error {
			if c.Args().Len() != 1 {
				return fail.Usagef("which configuration?")
			}
			if c.Bool("recorded") {
				if err := serve.WaitRecorded(); err != nil {
					return err
				}
			}
			return ports.Serve(c.Context, c.Args().First())
		},
	}
}

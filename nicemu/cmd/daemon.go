package cmd

import (
	"os"

	"github.com/urfave/cli/v2"

	"github.com/metaroce/metaroce/daemon/fail"
	"github.com/metaroce/metaroce/nicemu/lab"
	"github.com/metaroce/metaroce/nicemu/ports"
)

func (e *env) daemonCommand() *cli.Command {
	return &cli.Command{
		Name: lab.DaemonCommand, Hidden: true, Usage: "serve a configuration that `up` or `lab up` wrote", ArgsUsage: "FILE",
		Flags: []cli.Flag{&cli.BoolFlag{Name: "recorded", Usage: "begin once a byte on stdin says that the process is recorded"}},
		Action: func(c *cli.Context) error {
			if c.Args().Len() != 1 {
				return fail.Usagef("which configuration?")
			}
			if c.Bool("recorded") {
				if n, err := os.Stdin.Read(make([]byte, 1)); n != 1 {
					return fail.Failf("who started this daemon is gone: %w", err)
				}
			}
			return ports.Serve(c.Context, c.Args().First())
		},
	}
}

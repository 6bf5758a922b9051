package cmd

import (
	"github.com/urfave/cli/v2"

	"github.com/metaroce/metaroce/nicemu/fail"
)

func (e *env) demoCommand() *cli.Command {
	return &cli.Command{
		Name: "demo", Usage: "programs that nobody here wrote, over two hosts and four lossy planes", Description: example("nicemu demo"),
		Action: func(*cli.Context) error { return fail.Failf("not there yet") },
	}
}

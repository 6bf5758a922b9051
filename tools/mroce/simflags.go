package main

import (
	"slices"
	"strings"

	"github.com/urfave/cli/v2"
)

// flagsFirst puts the flags of a command before its arguments, so that they may stand behind them, too. What follows "--" is
// left as it is.
func flagsFirst(cmd *cli.Command, args []string) []string {
	if slices.Contains(args, "--generate-bash-completion") {
		return args
	}
	var flags, words []string
	for i := 0; i < len(args); i++ {
		a := args[i]
		if a == "--" {
			words = append(words, args[i+1:]...)
			break
		}
		if len(a) < 2 || a[0] != '-' {
			words = append(words, a)
			continue
		}
		flags = append(flags, a)
		name, _, has := strings.Cut(strings.TrimLeft(a, "-"), "=")
		if !has && takesValue(cmd, name) && i+1 < len(args) {
			i++
			flags = append(flags, args[i])
		}
	}
	if len(words) > 0 && strings.HasPrefix(words[0], "-") {
		flags = append(flags, "--")
	}
	return append(flags, words...)
}

func takesValue(cmd *cli.Command, name string) bool {
	for _, f := range cmd.Flags {
		if slices.Contains(f.Names(), name) {
			d, is := f.(cli.DocGenerationFlag)
			return is && d.TakesValue()
		}
	}
	return false
}

// simFlagsFirst does it for the commands of mroce sim.
func simFlagsFirst(app *cli.App, args []string) []string {
	if len(args) < 4 || args[1] != "sim" {
		return args
	}
	for _, c := range app.Command("sim").Subcommands {
		if c.HasName(args[2]) {
			return append(slices.Clone(args[:3]), flagsFirst(c, args[3:])...)
		}
	}
	return args
}

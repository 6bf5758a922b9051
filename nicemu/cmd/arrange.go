package cmd

import (
	"slices"
	"strings"

	"github.com/urfave/cli/v2"
)

// rawCommands end in a program's own command line: after their first arguments nothing is a flag of ours.
var rawCommands = map[string]int{"run": 0, "lab exec": 1, "lab run": -1}

// arrange moves flags in front of the other arguments of a command, because the flag package stops at the first one
// that is none: `nicemu lab up FILE --json` has to work like `nicemu lab up --json FILE`.
func arrange(app *cli.App, args []string) ([]string, error) {
	out := []string{args[0]}
	cmds, flags := app.Commands, app.Flags
	var path []string
	i := 1
	for i < len(args) {
		a := args[i]
		if a == "--" {
			break
		}
		if strings.HasPrefix(a, "-") && a != "-" {
			n := flagWords(flags, a)
			out = append(out, args[i:min(i+n, len(args))]...)
			i += n
			continue
		}
		c := findCommand(cmds, a)
		if c == nil {
			if len(cmds) == 0 || args[len(args)-1] == "--generate-bash-completion" {
				break
			}
			if a == "help" { // nicemu lab help up
				args = append(append(slices.Clone(args[:i]), args[i+1:]...), "--help")
				continue
			}
			// The flag package would take --help behind it for help of what there is not.
			return nil, unknownCommand(strings.Join(append([]string{app.Name}, path...), " "), a, cmds)
		}
		out = append(out, a)
		path = append(path, c.Name)
		cmds, flags = c.Subcommands, c.Flags
		i++
	}
	words, raw := rawCommands[strings.Join(path, " ")]
	var front, back []string
	for i < len(args) {
		a := args[i]
		if a == "--" {
			back = append(back, args[i:]...)
			break
		}
		if strings.HasPrefix(a, "-") && a != "-" {
			n := flagWords(flags, a)
			front = append(front, args[i:min(i+n, len(args))]...)
			i += n
			continue
		}
		if raw && words >= 0 && len(back) == words {
			back = append(append(back, "--"), args[i:]...) // the program begins here
			break
		}
		back = append(back, a)
		i++
	}
	if !raw && len(back) > 0 && back[0] == "--" {
		back = back[1:]
	}
	return append(append(out, front...), back...), nil
}

func findCommand(cmds []*cli.Command, name string) *cli.Command {
	for _, c := range cmds {
		if c.HasName(name) {
			return c
		}
	}
	return nil
}

// flagWords is 2 when the flag takes its value from the next word.
func flagWords(flags []cli.Flag, word string) int {
	if strings.Contains(word, "=") {
		return 1
	}
	name := strings.TrimLeft(word, "-")
	for _, f := range flags {
		for _, n := range f.Names() {
			if n != name {
				continue
			}
			if _, ok := f.(*cli.BoolFlag); ok {
				return 1
			}
			return 2
		}
	}
	return 1
}

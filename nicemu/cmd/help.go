package cmd

import "github.com/urfave/cli/v2"

// Help begins with an example that works as pasted; what the words mean comes after it.
const (
	helpHead = `{{if .Description}}{{.Description}}

{{end}}{{.HelpName}}{{if .Usage}}: {{.Usage}}{{end}}
`
	helpUsage = `
Usage: {{if .UsageText}}{{.UsageText}}{{else}}{{.HelpName}}{{if .VisibleCommands}} COMMAND{{end}}{{if .VisibleFlags}} [FLAGS]{{end}}{{if .ArgsUsage}} {{.ArgsUsage}}{{end}}{{end}}
`
	helpCommands = `{{if .VisibleCommands}}
Commands:{{range .VisibleCategories}}{{if .Name}}
   {{.Name}}:{{range .VisibleCommands}}
     {{join .Names ", "}}{{"\t"}}{{.Usage}}{{end}}{{else}}{{range .VisibleCommands}}
   {{join .Names ", "}}{{"\t"}}{{.Usage}}{{end}}{{end}}{{end}}
{{end}}`
	helpFlags = `{{if .VisibleFlags}}
Flags:{{range .VisibleFlags}}
   {{.}}{{end}}
{{end}}`
)

func init() {
	// -v is --verbose everywhere.
	cli.VersionFlag = &cli.BoolFlag{Name: "version", Usage: "print the version", DisableDefaultText: true}
	cli.CommandHelpTemplate = helpHead + helpUsage + helpCommands + helpFlags
	cli.SubcommandHelpTemplate = cli.CommandHelpTemplate
	cli.AppHelpTemplate = cli.CommandHelpTemplate
	flag := cli.FlagStringer
	cli.FlagStringer = func(f cli.Flag) string {
		if b, ok := f.(*cli.BoolFlag); ok {
			quiet := *b
			quiet.DisableDefaultText = true // "(default: false)" says nothing
			return flag(&quiet)
		}
		return flag(f)
	}
}

// Package plans holds the ready plans. Each says in its title what it shows and in its first lines what the goal is.
package plans

import (
	"embed"
	"io/fs"
	"strings"

	"github.com/metaroce/metaroce/daemon/fail"
	"github.com/metaroce/metaroce/nicemu/labfile"
	"github.com/metaroce/metaroce/tools/sim/plan"
)

// FS has NAME.yaml of every ready plan.
//
//go:embed *.yaml
var FS embed.FS

// Names returns the names of the ready plans in alphabetical order.
func Names() []string {
	entries, err := fs.ReadDir(FS, ".") // sorted
	if err != nil {
		panic("plans: " + err.Error()) // it is in the program
	}
	var names []string
	for _, e := range entries {
		names = append(names, strings.TrimSuffix(e.Name(), ".yaml"))
	}
	return names
}

// Read returns the text of a ready plan. The error names the nearest one that there is.
func Read(name string) ([]byte, error) {
	b, err := FS.ReadFile(name + ".yaml")
	if err == nil {
		return b, nil
	}
	names := Names()
	if near := labfile.Nearest(name, names); near != "" {
		return nil, fail.Usagef("no ready plan %q; did you mean %q?", name, near)
	}
	return nil, fail.Usagef("no ready plan %q; there are %s", name, strings.Join(names, ", "))
}

// Parse reads a ready plan with overrides, as of plan.ParseWith.
func Parse(name string, overrides map[string]string) (*plan.Plan, error) {
	b, err := Read(name)
	if err != nil {
		return nil, err
	}
	return plan.ParseWith("plans/"+name+".yaml", b, overrides)
}

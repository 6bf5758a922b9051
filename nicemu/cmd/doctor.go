package cmd

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/metaroce/metaroce/daemon/fail"
	"github.com/metaroce/metaroce/daemon/rundir"
	"github.com/metaroce/metaroce/nicemu/doctor"
	"github.com/metaroce/metaroce/nicemu/view"
)

func (e *env) doctorCommand() *cli.Command {
	return &cli.Command{
		Name: "doctor", Usage: "what this machine can do, and what would change the rest", Description: example("nicemu doctor"),
		Flags: []cli.Flag{jsonFlag()}, Action: e.doctor,
	}
}

func (e *env) doctor(c *cli.Context) error {
	dir, err := libDir()
	r := doctor.Run(doctor.Options{LibDir: dir, LibErr: err, TryView: e.tryView})
	if c.Bool("json") {
		if err := e.printJSON(r); err != nil {
			return err
		}
	} else {
		e.printReport(r)
	}
	if !r.Usable {
		return fail.Lackf("programs cannot be served on this machine: see the lines marked no")
	}
	return nil
}

func (e *env) printReport(r doctor.Report) {
	colour := func(state string) string { return fmt.Sprintf("%-8s", state) }
	if r, ok := e.out.(*results); ok && isTerminal(r.to) && os.Getenv("NO_COLOR") == "" {
		code := map[string]string{doctor.OK: "32", doctor.Limited: "33", doctor.No: "31"}
		colour = func(state string) string { return fmt.Sprintf("\x1b[%sm%-8s\x1b[0m", code[state], state) }
	}
	for _, ch := range r.Checks {
		fmt.Fprintf(e.out, "%s%s: %s\n", colour(ch.State), ch.Name, ch.Detail)
		if ch.Fix != "" && ch.State != doctor.OK {
			fmt.Fprintf(e.out, "%8sto change that: %s\n", "", ch.Fix)
		}
	}
	fmt.Fprintf(e.out, "\nby default\n")
	for _, d := range r.Defaults {
		fmt.Fprintf(e.out, "        %s\n", d)
	}
}

// tryView makes the view as `run` does, around a program that does nothing.
func (e *env) tryView() (string, error) {
	modes, err := viewModes("auto")
	if err != nil {
		return "", err
	}
	base, err := rundir.Dir()
	if err != nil {
		return "", err
	}
	spec := view.Spec{Work: filepath.Join(base, "view"), NICs: []view.NIC{{Name: "mr0", GUID: "0200:0000:0000:0001", GIDs: []string{"::"}}}}
	if err := os.MkdirAll(spec.Work, 0o755); err != nil {
		return "", err
	}
	exe, err := os.Executable()
	if err != nil {
		return "", err
	}
	p := viewed{path: exe, argv: []string{exe, doctor.ProbeCommand, "view"}, environ: os.Environ(), quiet: true}
	var refused []string
	for _, m := range modes {
		if m.none() {
			break
		}
		code, err := 0, error(nil)
		if m.answers {
			code, err = e.tryAnswers(m, spec, filepath.Join(base, "sysfs", "doctor"), p)
		} else {
			code, err = e.runViewed(m, spec, nil, p)
		}
		if err == nil && code == 0 {
			return m.name, nil
		}
		if err == nil {
			err = errors.New("the files do not show")
		}
		refused = append(refused, m.name+": "+err.Error())
	}
	return "", errors.New(strings.Join(refused, "; "))
}

// tryAnswers makes a tree beside the others, and nobody is asked what it should show.
func (e *env) tryAnswers(m viewMode, spec view.Spec, dir string, p viewed) (int, error) {
	spec.Work = dir
	if err := view.Write(dir, spec); err != nil {
		return 0, err
	}
	defer os.RemoveAll(dir)
	return e.runAnswered(m, spec, "", p)
}

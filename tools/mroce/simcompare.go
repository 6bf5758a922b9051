package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/metaroce/metaroce/daemon/fail"
	"github.com/metaroce/metaroce/tools/sim/result"
)

func (e *env) simCompareCommand() *cli.Command {
	return &cli.Command{
		Name: "compare", Usage: "set results beside each other: table, JSON, plot", ArgsUsage: "[NAME=]RESULT [NAME=]RESULT...",
		Description: "  mroce sim compare mr=smoke4 rocev2=smoke4-rocev2/result.json\n  mroce sim compare --plot loss.svg --x loss --y goodput_share loss.sweep\n\n" +
			"RESULT is a result.json, the directory that sim run --out made, or that of a sweep: all of its points that are done. The others are compared with the first. " +
			"--x and --y are numbers of setup, summary or the first group, named as in result.json, or loss: packets lost on wires over all hops. " +
			"Ends with 4 when one of the results is partial.",
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "y", Usage: "the number that is compared", Value: "fct_max_s"},
			&cli.StringFlag{Name: "x", Usage: "with --plot: the number on the other axis", Value: "size_bytes"},
			&cli.StringFlag{Name: "plot", Usage: "draw --y by --x into this file, .svg or .png; a line for each transport"},
			&cli.BoolFlag{Name: "logx", Usage: "with --plot: a scale of powers"},
			&cli.BoolFlag{Name: "json", Usage: "one object for each result, a line each"},
		},
		Action: e.simCompare,
	}
}

func (e *env) simCompare(c *cli.Context) error {
	file := c.String("plot")
	switch ext := filepath.Ext(file); {
	case file != "" && ext != ".svg" && ext != ".png":
		return fail.Usagef("--plot: %q ends neither in .svg nor in .png", file)
	case file == "" && (c.IsSet("x") || c.Bool("logx")):
		return fail.Usagef("--x and --logx are for --plot FILE")
	}
	results, names, err := readResults(c.Args().Slice())
	if err != nil {
		return err
	}
	if len(results) < 2 {
		return fail.Usagef("compare what? mroce sim compare RESULT RESULT: there are %d results", len(results))
	}
	t, err := result.Compared(results, names, c.String("y"))
	if err != nil {
		return fail.Usagef("--y: %w", err)
	}
	if c.Bool("json") {
		err = lines(e.out, t)
	} else {
		err = t.Text(e.out)
	}
	if err == nil && file != "" {
		err = comparePlot(results, c, file)
	}
	if err != nil {
		return err
	}
	if slices.ContainsFunc(t, func(b result.Beside) bool { return b.Partial }) {
		return exitCode(fail.Partial)
	}
	return nil
}

func comparePlot(results []*result.Result, c *cli.Context, file string) error {
	f, err := result.Compare(results, c.String("x"), result.CompareOptions{Y: c.String("y"), LogX: c.Bool("logx")})
	if err != nil {
		return fail.Usagef("--plot: %w", err)
	}
	write := f.WriteSVG
	if filepath.Ext(file) == ".png" {
		write = f.WritePNG
	}
	return writeWhole(file, write)
}

// writeWhole writes a file that is there whole or not at all.
func writeWhole(file string, write func(io.Writer) error) error {
	tmp, err := os.CreateTemp(filepath.Dir(file), ".*.tmp")
	if err != nil {
		return fmt.Errorf("cannot write: %w", err)
	}
	err = errors.Join(write(tmp), tmp.Chmod(0o644), tmp.Close())
	if err == nil {
		err = os.Rename(tmp.Name(), file)
	}
	if err != nil {
		os.Remove(tmp.Name())
		return fmt.Errorf("cannot write %s: %w", file, err)
	}
	return nil
}

// readResults reads what the arguments name: files, directories of results, and those of sweeps.
func readResults(args []string) (results []*result.Result, names []string, err error) {
	for _, a := range args {
		name, path := "", a
		if n, p, is := strings.Cut(a, "="); is && n != "" && !strings.ContainsRune(n, filepath.Separator) {
			if _, err := os.Stat(a); err != nil { // no file that has this sign in its name
				name, path = n, p
			}
		}
		files, err := resultFiles(path)
		if err != nil {
			return nil, nil, fail.Usagef("cannot read the result: %w", err)
		}
		for _, file := range files {
			r, err := readResult(file)
			if err != nil {
				return nil, nil, fail.Usagef("%s: %w", file, err)
			}
			results = append(results, r)
			names = append(names, resultName(name, path, file, len(files)))
		}
	}
	return results, names, nil
}

// resultFiles are the results that a path stands for.
func resultFiles(path string) ([]string, error) {
	st, err := os.Stat(path)
	if err != nil || !st.IsDir() {
		return []string{path}, err
	}
	file := filepath.Join(path, "result.json")
	if _, err := os.Stat(file); err == nil || !errors.Is(err, fs.ErrNotExist) {
		return []string{file}, err
	}
	points, err := filepath.Glob(filepath.Join(globPath(path), "points", "*", "result.json"))
	points = slices.DeleteFunc(points, unfinished)
	if err == nil && len(points) == 0 {
		err = fmt.Errorf("%s: neither a result.json nor points of a sweep that are done", path)
	}
	return points, err
}

// unfinished reports whether a point's directory has the suffix of one that is not complete.
func unfinished(file string) bool {
	dir := filepath.Dir(file)
	return strings.HasSuffix(dir, ".partial") || strings.HasSuffix(dir, ".failed")
}

// globPath takes the meaning from the signs of patterns.
func globPath(path string) string {
	return strings.NewReplacer(`\`, `\\`, "*", `\*`, "?", `\?`, "[", `\[`).Replace(path)
}

func readResult(file string) (*result.Result, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return result.ReadJSON(f)
}

// resultName is what the user calls a result, else its directory, else its file; points of a sweep have their own names.
func resultName(name, path, file string, of int) string {
	point := filepath.Base(filepath.Dir(file))
	switch {
	case of > 1 && name != "":
		return name + "/" + point
	case of > 1:
		return point
	case name != "":
		return name
	case filepath.Base(file) == "result.json" && point != ".":
		return point
	}
	return strings.TrimSuffix(filepath.Base(path), ".json")
}

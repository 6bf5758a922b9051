package sweep

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/metaroce/metaroce/daemon/fail"
	"github.com/metaroce/metaroce/nicemu/labfile"
)

// FindPlan returns the argument for `mroce sim run`, the plan's text, and the directory that its files are relative to: a file, relative
// to the sweep file, or a ready plan. ready returns the text of a ready plan, nil when there is none, and the names of all.
func (s *Sweep) FindPlan(ready func(name string) (text []byte, names []string)) (arg string, text []byte, base string, err error) {
	path := s.Plan
	if !filepath.IsAbs(path) {
		path = filepath.Join(filepath.Dir(s.File), path)
	}
	if path, err = filepath.Abs(path); err != nil {
		return "", nil, "", err
	}
	text, err = os.ReadFile(path)
	if err == nil {
		return path, text, filepath.Dir(path), nil
	}
	p := parser{file: s.File}
	if !os.IsNotExist(err) && !errors.Is(err, syscall.EISDIR) { // `mroce sim run smoke --out smoke` makes a directory of that name
		return "", nil, "", p.errf(s.line, "the plan cannot be read: %v", err)
	}
	text, names := ready(s.Plan)
	if text != nil {
		return s.Plan, text, "", nil
	}
	if near := labfile.Nearest(s.Plan, append(slices.Clone(names), plansBeside(path)...)); near != "" {
		return "", nil, "", p.errf(s.line, "no plan %q; did you mean %q?", s.Plan, near)
	}
	if len(names) == 0 {
		return "", nil, "", p.errf(s.line, "no plan %q: there is no such file", s.Plan)
	}
	return "", nil, "", p.errf(s.line, "no plan %q: no such file, and no ready plan; these are ready: %s", s.Plan, strings.Join(names, ", "))
}

// plansBeside lists files that could have been meant.
func plansBeside(path string) (names []string) {
	files, _ := filepath.Glob(filepath.Join(filepath.Dir(path), "*"+filepath.Ext(path))) // the user's own characters: no matter
	for _, f := range files {
		names = append(names, filepath.Base(f))
	}
	return names
}

// CheckPoints reads the plan as each point has it, so that a key that no plan has stops the sweep before it begins.
func (s *Sweep) CheckPoints(arg string, text []byte, check func(name string, text []byte, set map[string]string) error) error {
	p := parser{file: s.File}
	seen := map[string]bool{}
	for _, pt := range s.Points {
		set := map[string]string{}
		for _, v := range slices.Concat(s.Set, pt.Set) {
			set[v.Key] = v.Text
		}
		key := Point{Set: pt.Set}.canonical() // seeds change nothing
		if seen[key] {
			continue
		}
		seen[key] = true
		if err := check(arg, text, set); err != nil {
			return fail.Usagef("%w", p.errf(pt.Line, "point %s: %v", pt.Name, err))
		}
	}
	return nil
}

// Command specgen keeps everything that follows from spec/ in step with it.
//
//	specgen         write what is generated from spec/wire/formats.yaml, and the index
//	specgen -index  write spec/requirements.json only: from the chapters and the citations in the sources
//	specgen -prune  take requirements that are cited by now off the list "not cited yet" in spec/exceptions.yaml
//	specgen -check  write nothing; fail when something is stale, cited and unknown, or required and not cited by both code and a test
package main

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"sort"
)

func main() {
	var o options
	flag.BoolVar(&o.check, "check", false, "write nothing, fail when anything is stale or missing")
	flag.BoolVar(&o.index, "index", false, "write the requirement index")
	flag.BoolVar(&o.prune, "prune", false, "remove cited requirements from the list of those not cited yet")
	flag.StringVar(&o.root, "root", "", "root of the repository (default: the next folder upwards with spec/wire/formats.yaml)")
	flag.Parse()
	if err := run(o); err != nil {
		fmt.Fprintln(os.Stderr, "specgen:", err)
		os.Exit(1)
	}
}

type options struct {
	check, index, prune bool
	root                string
}

func run(o options) error {
	if o.root == "" {
		root, err := findRoot()
		if err != nil {
			return err
		}
		o.root = root
	}
	if o.prune {
		return prune(o.root)
	}
	files := map[string][]byte{}
	var errs []error
	if o.check || !o.index {
		f, err := generate(o.root)
		if err != nil {
			return err
		}
		files = f
	}
	name, data, err := makeIndex(o.root)
	if err != nil {
		errs = append(errs, err)
	}
	if data != nil {
		files[name] = data
	}
	if o.check {
		return errors.Join(append(errs, compare(o.root, files)...)...)
	}
	for _, name := range sortedKeys(files) {
		if err := writeIfChanged(filepath.Join(o.root, name), files[name]); err != nil {
			return err
		}
	}
	if len(errs) > 0 { // the index is written all the same; -check is the gate
		fmt.Fprintln(os.Stderr, errors.Join(errs...))
	}
	return nil
}

// generate returns the wanted contents of every generated file, by its name below root.
func generate(root string) (map[string][]byte, error) {
	f, err := loadFormats(filepath.Join(root, "spec/wire/formats.yaml"))
	if err != nil {
		return nil, err
	}
	files := map[string][]byte{}
	code, err := goFile(f)
	if err != nil {
		return nil, err
	}
	files["transport/wire/offsets_gen.go"] = code
	files["spec/wire/formats.h"] = cHeader(f)

	chapters, err := filepath.Glob(filepath.Join(root, "spec/*.md"))
	if err != nil {
		return nil, err
	}
	sources, err := filepath.Glob(filepath.Join(root, "transport/wire/*.go"))
	if err != nil {
		return nil, err
	}
	for _, path := range append(chapters, sources...) {
		rel, err := filepath.Rel(root, path)
		if err != nil {
			return nil, err
		}
		if _, done := files[rel]; done {
			continue
		}
		old, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		fill := fillChapter
		if filepath.Ext(path) == ".go" {
			fill = fillComments
		}
		text, err := fill(f, old)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", rel, err)
		}
		files[rel] = text
	}
	return files, nil
}

func compare(root string, files map[string][]byte) (errs []error) {
	for _, name := range sortedKeys(files) {
		old, err := os.ReadFile(filepath.Join(root, name))
		if err != nil {
			errs = append(errs, err)
		} else if !bytes.Equal(old, files[name]) {
			errs = append(errs, fmt.Errorf("%s is stale: run `go run ./tools/specgen`", name))
		}
	}
	return errs
}

func writeIfChanged(path string, data []byte) error {
	if old, err := os.ReadFile(path); err == nil && bytes.Equal(old, data) {
		return nil
	}
	return os.WriteFile(path, data, 0o644)
}

func findRoot() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "spec/wire/formats.yaml")); err == nil {
			return dir, nil
		}
		up := filepath.Dir(dir)
		if up == dir {
			return "", errors.New("no spec/wire/formats.yaml in this folder or above it")
		}
		dir = up
	}
}

func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	sort.Strings(keys)
	return keys
}

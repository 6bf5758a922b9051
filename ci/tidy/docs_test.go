package tidy

import (
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var (
	link       = regexp.MustCompile(`\]\(([^)#: ]+)(#[^)]*)?\)`)
	code       = regexp.MustCompile("`([^`]+)`")
	identifier = regexp.MustCompile(`^[A-Za-z_]+(\.[A-Za-z_]+)?$`)
	sourceFile = regexp.MustCompile(`^[a-z0-9_/-]+\.(go|c|h|sh|yaml)$`)
)

// TestDocLinks: what a document points at exists.
func TestDocLinks(t *testing.T) {
	for _, f := range tree(t) {
		if filepath.Ext(f.path) != ".md" {
			continue
		}
		for _, m := range link.FindAllStringSubmatch(string(f.text), -1) {
			if _, err := os.Stat(filepath.Join(root(t), path.Dir(f.path), m[1])); err != nil {
				t.Errorf("%s links to %s, which is not there", f.path, m[1])
			}
		}
	}
}

// TestDatapath: the walk names files and functions; a renamed one must be renamed there, too.
func TestDatapath(t *testing.T) {
	var all strings.Builder
	var doc string
	paths := map[string]bool{}
	for _, f := range tree(t) {
		switch filepath.Ext(f.path) {
		case ".go", ".c", ".h":
			all.Write(f.text)
		}
		paths[f.path], paths[path.Base(f.path)] = true, true
		if f.path == "docs/datapath.md" {
			doc = string(f.text)
		}
	}
	for _, m := range code.FindAllStringSubmatch(strings.ReplaceAll(doc, "```", ""), -1) {
		word := m[1]
		switch {
		case sourceFile.MatchString(word):
			if !paths[word] {
				t.Errorf("docs/datapath.md names %s, which is not there", word)
			}
		case identifier.MatchString(word):
			if name := word[strings.LastIndex(word, ".")+1:]; !strings.Contains(all.String(), name) {
				t.Errorf("docs/datapath.md names %s, which is not there", word)
			}
		}
	}
}

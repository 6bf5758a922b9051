// Package tidy holds checks of the tree itself: sizes, headers, words. They are a test so that they run everywhere.
package tidy

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// Sizes that one reader can hold.
const (
	fileLinesMax     = 800
	functionLinesMax = 70
	testLinesMax     = 120 // tables and scripts read from top to bottom
	fileBytesMax     = 512 << 10
)

// longFunctions lists functions that are longer, and why that is right: "file:function" → reason. An entry that is no
// longer needed fails the test, so the list only shrinks.
var longFunctions = map[string]string{}

// longFiles likewise.
var longFiles = map[string]string{}

// wordsAllowed lists files that must contain a banned word, and why.
var wordsAllowed = map[string]string{
	"ci/tidy/tidy_test.go": "names the words",
}

// Words that do not belong into a committed file. An unfinished thing has an issue: "TODO(#12)" is fine.
var bannedWords = []struct {
	re  *regexp.Regexp
	why string
}{
	{regexp.MustCompile(`(\b(TODO|FIXME)\b|(//|/\*|#) ?XXX)($|[^(]|\([^#])`), "open an issue and write TODO(#N)"},
	{regexp.MustCompile(`(^|[\s"'=(:])/(work|root|home)/[a-z]`), "a path of somebody's machine"},
	{regexp.MustCompile(`^(<<<<<<<|>>>>>>>) `), "an unresolved merge"},
	{regexp.MustCompile(`fmt\.Print(f|ln)?\("(DEBUG|debug)`), "left from debugging"},
}

type file struct {
	path  string // relative to the root, with slashes
	text  []byte
	lines int
}

func TestTree(t *testing.T) {
	files := tree(t)
	for _, f := range files {
		checkSize(t, f)
		checkHeader(t, f)
		checkWords(t, f)
		checkSkips(t, f)
	}
}

func TestFunctions(t *testing.T) {
	seen := map[string]bool{}
	for _, f := range tree(t) {
		var long map[string]int
		switch filepath.Ext(f.path) {
		case ".go":
			long = longGoFunctions(t, f)
		case ".c":
			long = longCFunctions(f)
		}
		for name, lines := range long {
			key := f.path + ":" + name
			seen[key] = true
			if longFunctions[key] == "" {
				t.Errorf("%s has %d lines: split it by concern, or say why not in longFunctions", key, lines)
			}
		}
	}
	for key := range longFunctions {
		if !seen[key] {
			t.Errorf("longFunctions: %s is short now; drop the entry", key)
		}
	}
}

// TestRootModule keeps the root module installable: `go install` refuses modules with a replace.
func TestRootModule(t *testing.T) {
	mod, err := os.ReadFile(filepath.Join(root(t), "go.mod"))
	if err != nil {
		t.Fatal(err)
	}
	if bytes.Contains(mod, []byte("\nreplace ")) {
		t.Error("go.mod has a replace; it belongs into a nested module")
	}
}

func checkSize(t *testing.T, f file) {
	if len(f.text) > fileBytesMax {
		t.Errorf("%s has %d bytes; large and binary files do not belong in git", f.path, len(f.text))
	}
	switch filepath.Ext(f.path) {
	case ".go", ".c", ".h", ".sh", ".py":
		if tooLong := f.lines > fileLinesMax && !generated(f); tooLong != (longFiles[f.path] != "") {
			t.Errorf("%s has %d lines (limit %d): split it by concern, or keep longFiles up to date", f.path, f.lines, fileLinesMax)
		}
	}
}

// checkHeader wants the licence where a file travels alone: C sources end up in other trees, scripts get pasted.
func checkHeader(t *testing.T, f file) {
	switch filepath.Ext(f.path) {
	case ".c", ".h", ".sh":
		head := f.text[:min(len(f.text), 200)]
		if !bytes.Contains(head, []byte("SPDX-License-Identifier: Apache-2.0")) && !generated(f) {
			t.Errorf("%s: no SPDX-License-Identifier: Apache-2.0 in its first lines", f.path)
		}
	}
}

func checkWords(t *testing.T, f file) {
	if bytes.IndexByte(f.text, 0) >= 0 || wordsAllowed[f.path] != "" || filepath.Base(f.path) == "go.sum" {
		return
	}
	for n, line := range strings.Split(string(f.text), "\n") {
		for _, w := range bannedWords {
			if w.re.MatchString(line) {
				t.Errorf("%s:%d: %q: %s", f.path, n+1, strings.TrimSpace(line), w.why)
			}
		}
	}
}

// checkSkips: a test is left out only by a helper that knows MR_TEST_REQUIRE, so that CI cannot skip in silence.
func checkSkips(t *testing.T, f file) {
	short := regexp.MustCompile(`if testing\.Short\(\) \{\s*[tb]\.Skip`) // the job without -short runs it
	skips := regexp.MustCompile(`\b[tbf]b?\.(Skip|Skipf|SkipNow)\(`)
	if filepath.Ext(f.path) == ".go" && skips.Match(short.ReplaceAll(f.text, nil)) && !bytes.Contains(f.text, []byte("MR_TEST_REQUIRE")) && wordsAllowed[f.path] == "" {
		t.Errorf("%s skips a test without looking at MR_TEST_REQUIRE", f.path)
	}
}

func longGoFunctions(t *testing.T, f file) map[string]int {
	long := map[string]int{}
	if generated(f) {
		return long
	}
	fset := token.NewFileSet()
	parsed, err := parser.ParseFile(fset, f.path, f.text, parser.SkipObjectResolution)
	if err != nil {
		t.Errorf("%s: %v", f.path, err)
		return long
	}
	limit := functionLinesMax
	if strings.HasSuffix(f.path, "_test.go") {
		limit = testLinesMax
	}
	for _, d := range parsed.Decls {
		fn, ok := d.(*ast.FuncDecl)
		if !ok || fn.Body == nil {
			continue
		}
		if n := fset.Position(fn.Body.End()).Line - fset.Position(fn.Pos()).Line + 1; n > limit {
			long[receiver(fn)+fn.Name.Name] = n
		}
	}
	return long
}

func receiver(fn *ast.FuncDecl) string {
	if fn.Recv == nil || len(fn.Recv.List) == 0 {
		return ""
	}
	x := fn.Recv.List[0].Type
	if star, ok := x.(*ast.StarExpr); ok {
		x = star.X
	}
	if id, ok := x.(*ast.Ident); ok {
		return id.Name + "."
	}
	return ""
}

var cFunction = regexp.MustCompile(`^[A-Za-z_].*?([A-Za-z_0-9]+)\(`)

// longCFunctions relies on our formatting: a definition begins in the first column and ends with a brace there.
func longCFunctions(f file) map[string]int {
	long := map[string]int{}
	name, start := "", 0
	for n, line := range strings.Split(string(f.text), "\n") {
		if m := cFunction.FindStringSubmatch(line); m != nil && !strings.HasSuffix(line, ";") {
			name, start = m[1], n
		}
		if line == "}" && name != "" {
			if lines := n - start + 1; lines > functionLinesMax {
				long[name] = lines
			}
			name = ""
		}
	}
	return long
}

func generated(f file) bool {
	base := filepath.Base(f.path)
	return strings.Contains(base, "_gen.") || strings.Contains(f.path, "testdata/") || strings.Contains(f.path, "third_party/") ||
		bytes.Contains(f.text[:min(len(f.text), 400)], []byte("DO NOT EDIT"))
}

func root(t *testing.T) string {
	dir, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// tree reads the files that git tracks, or, in an unpacked archive, all but hidden ones and build/.
func tree(t *testing.T) []file {
	dir := root(t)
	var paths []string
	if out, err := exec.Command("git", "-C", dir, "ls-files", "-z").Output(); err == nil {
		paths = strings.Split(strings.TrimSuffix(string(out), "\x00"), "\x00")
	} else {
		err := filepath.WalkDir(dir, func(p string, d os.DirEntry, err error) error {
			if err != nil {
				return err
			}
			rel, _ := filepath.Rel(dir, p)
			if d.IsDir() && rel != "." && (strings.HasPrefix(d.Name(), ".") || rel == "build") {
				return filepath.SkipDir
			}
			if d.Type().IsRegular() {
				paths = append(paths, filepath.ToSlash(rel))
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	var files []file
	for _, p := range paths {
		text, err := os.ReadFile(filepath.Join(dir, p))
		if os.IsNotExist(err) {
			continue // deleted, not committed yet
		}
		if err != nil {
			t.Fatal(fmt.Errorf("%s: %w", p, err))
		}
		files = append(files, file{p, text, bytes.Count(text, []byte("\n"))})
	}
	if len(files) == 0 {
		t.Fatal("no files found")
	}
	return files
}

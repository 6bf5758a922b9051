package result

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func files(t *testing.T, dir string) map[string]string {
	t.Helper()
	all := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		b, err := os.ReadFile(path)
		name, _ := filepath.Rel(dir, path)
		all[name] = string(b)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// TestSave: all files are there, nothing else is left beside them, and the same result gives the same bytes but for its cost.
func TestSave(t *testing.T) {
	parent := t.TempDir()
	r := sample(t)
	if err := Save(filepath.Join(parent, "deep", "a"), r, SaveOptions{PNG: true}); err != nil {
		t.Fatal(err)
	}
	a := files(t, filepath.Join(parent, "deep", "a"))
	for _, name := range []string{"result.json", "flows.csv", "links.csv", "line.csv", "groups.csv", "summary.csv",
		"report.html", "plots/fct.svg", "plots/fct.png", "plots/uplinks.svg"} {
		if a[name] == "" {
			t.Errorf("no %s", name)
		}
	}
	if left, _ := os.ReadDir(filepath.Join(parent, "deep")); len(left) != 1 {
		t.Errorf("left: %v", left)
	}
	r.Cost = Cost{WallSeconds: 99}
	if err := Save(filepath.Join(parent, "b"), r, SaveOptions{PNG: true}); err != nil {
		t.Fatal(err)
	}
	for name, text := range files(t, filepath.Join(parent, "b")) {
		if (text != a[name]) != (name == ResultFile || name == ReportFile) {
			t.Errorf("%s: other bytes: %v", name, text != a[name])
		}
	}
}

// TestSavePartial: every file with something in it says that the result is partial.
func TestSavePartial(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "p")
	if err := Save(dir, partial(t, sample(t)), SaveOptions{}); err != nil {
		t.Fatal(err)
	}
	for name, text := range files(t, dir) {
		want := "PARTIAL"
		switch filepath.Ext(name) {
		case ".csv":
			want = "true"
		case ".json":
			want = `"partial": true`
		}
		if !strings.Contains(text, want) {
			t.Errorf("%s does not say %s", name, want)
		}
	}
}

// TestSaveThere: nothing that we did not write is ever replaced; an earlier result only by force.
func TestSaveThere(t *testing.T) {
	r := sample(t)
	put := func(t *testing.T, dir, name, text string) {
		if err := errors.Join(os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755), os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	for _, x := range []struct {
		name  string
		make  func(t *testing.T, dir string)
		plain string // the error, "" = written
		force string
	}{
		{"empty", func(t *testing.T, dir string) { os.Mkdir(dir, 0o755) }, "", ""},
		{"ours", func(t *testing.T, dir string) { Save(dir, r, SaveOptions{PNG: true}) }, "--force replaces it", ""},
		{"somebody's", func(t *testing.T, dir string) { put(t, dir, "thesis.tex", "x") }, "thesis.tex", "thesis.tex"},
		{"ours and a note", func(t *testing.T, dir string) { Save(dir, r, SaveOptions{}); put(t, dir, "notes.txt", "x") }, "notes.txt", "notes.txt"},
		{"ours and a plot of theirs", func(t *testing.T, dir string) { Save(dir, r, SaveOptions{}); put(t, dir, "plots/x.pdf", "x") }, "x.pdf", "x.pdf"},
		{"our names only", func(t *testing.T, dir string) { put(t, dir, "flows.csv", "x") }, "no result.json", "no result.json"},
		{"a result of others", func(t *testing.T, dir string) { put(t, dir, "result.json", `{"score": 3}`) }, "not a result", "not a result"},
		{"edited", func(t *testing.T, dir string) {
			Save(dir, r, SaveOptions{})
			b, _ := os.ReadFile(filepath.Join(dir, ResultFile))
			put(t, dir, ResultFile, strings.Replace(string(b), `"seed": 7`, `"seed": 9`, 1))
		}, "not what was written", "not what was written"},
		{"a file", func(t *testing.T, dir string) { os.WriteFile(dir, []byte("x"), 0o644) }, "not a directory", "not a directory"},
		{"a link to nothing", func(t *testing.T, dir string) { os.Symlink("nowhere", dir) }, "link", "link"},
	} {
		for _, force := range []bool{false, true} {
			dir := filepath.Join(t.TempDir(), "out")
			x.make(t, dir)
			before, _ := os.ReadDir(dir)
			want := x.plain
			if force {
				want = x.force
			}
			err := Save(dir, r, SaveOptions{Force: force})
			if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
				t.Errorf("%s, force %v: %v, want %q", x.name, force, err, want)
			}
			if after, _ := os.ReadDir(dir); err != nil && len(after) != len(before) {
				t.Errorf("%s, force %v: was touched", x.name, force)
			}
			if left, _ := filepath.Glob(filepath.Join(filepath.Dir(dir), ".out*")); len(left) > 0 {
				t.Errorf("%s: left %v", x.name, left)
			}
			if err == nil {
				f, _ := os.Open(filepath.Join(dir, ResultFile))
				if _, err := ReadJSON(f); err != nil {
					t.Errorf("%s: %v", x.name, err)
				}
				f.Close()
			}
		}
	}
}

// TestSaveFails: when a file cannot be written there is nothing under the name, and nothing beside it.
func TestSaveFails(t *testing.T) {
	parent := t.TempDir()
	r := sample(t)
	r.Hash = "" // the JSON refuses
	if err := Save(filepath.Join(parent, "x"), r, SaveOptions{}); err == nil {
		t.Fatal("saved")
	}
	if left, _ := os.ReadDir(parent); len(left) != 0 {
		t.Errorf("left: %v", left)
	}
	// A link to an earlier result stays a link.
	r = sample(t)
	if err := errors.Join(Save(filepath.Join(parent, "real"), r, SaveOptions{}), os.Symlink("real", filepath.Join(parent, "latest"))); err != nil {
		t.Fatal(err)
	}
	r.Seed++
	if err := errors.Join(r.Seal(), Save(filepath.Join(parent, "latest"), r, SaveOptions{Force: true})); err != nil {
		t.Fatal(err)
	}
	b, _ := os.ReadFile(filepath.Join(parent, "real", ResultFile))
	if got, err := ReadJSON(bytes.NewReader(b)); err != nil || got.Seed != r.Seed {
		t.Errorf("behind the link: %v", err)
	}
	if f, err := os.Lstat(filepath.Join(parent, "latest")); err != nil || f.Mode()&os.ModeSymlink == 0 {
		t.Errorf("the link is gone (%v)", err)
	}
}

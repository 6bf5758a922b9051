package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

const repo = "../.."

func repoFormats(t *testing.T) *Formats {
	t.Helper()
	f, err := loadFormats(filepath.Join(repo, "spec/wire/formats.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// TestNothingIsStale is `specgen -check` without the citations, which change while people work.
func TestNothingIsStale(t *testing.T) {
	files, err := generate(repo)
	if err != nil {
		t.Fatal(err)
	}
	for _, err := range compare(repo, files) {
		t.Error(err)
	}
}

// TestEverythingIsShown: every header is drawn in a chapter, every registry is listed with what is free in it.
func TestEverythingIsShown(t *testing.T) {
	f := repoFormats(t)
	paths, err := filepath.Glob(filepath.Join(repo, "spec/*.md"))
	if err != nil {
		t.Fatal(err)
	}
	shown := map[string]bool{}
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range placeRE.FindAllSubmatch(text, -1) {
			shown[string(m[1])] = true
		}
	}
	for _, list := range [][]Header{f.Headers, f.RoCE} {
		for i := range list {
			if !shown["bits "+list[i].Name] {
				t.Errorf("header %s is drawn nowhere", list[i].Name)
			}
		}
	}
	for _, e := range f.allEnums() {
		if !shown["registry "+e.Name] {
			t.Errorf("registry %s is listed nowhere", e.Name)
		}
	}
}

// TestRegistry: what is given out, what is free, what is for experiments.
func TestRegistry(t *testing.T) {
	e := &Enum{Range: []int{0, 0x10}, Trial: []int{8, 9}, Values: []Value{{Wire: "B", Value: 5}, {Wire: "A", Value: 1}, {Wire: "C", Value: 6}}}
	var b strings.Builder
	registryPart(&b, e)
	want := []string{"0x00 | free", "0x01 A |", "0x02–0x04 | free", "0x05 B |", "0x06 C |", "0x07 | free", "0x08–0x09 | for experiments", "0x0A–0x10 | free"}
	lines := strings.Split(strings.TrimSpace(b.String()), "\n")[2:]
	for i, l := range lines {
		var cells []string
		for _, c := range strings.Split(l, "|") {
			if c = strings.TrimSpace(c); c != "" {
				cells = append(cells, c)
			}
		}
		got := cells[0] + " | " + cells[len(cells)-1]
		if len(cells) == 2 && i < len(want) && strings.HasSuffix(want[i], "|") {
			got = cells[0] + " " + cells[1] + " |"
		}
		if i >= len(want) || got != want[i] {
			t.Errorf("line %d: %q of %q", i, got, l)
		}
	}
	if len(lines) != len(want) {
		t.Errorf("%d lines, want %d", len(lines), len(want))
	}
}

// TestVectorsFollowFormats finds every field of every golden vector in its packet by formats.yaml alone.
func TestVectorsFollowFormats(t *testing.T) {
	f := repoFormats(t)
	paths, err := filepath.Glob(filepath.Join(repo, "spec/vectors/*.json"))
	if err != nil || len(paths) == 0 {
		t.Fatal(paths, err)
	}
	fields := 0
	for _, path := range paths {
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		var file struct {
			Vectors []struct {
				Name, Hex string
				Parts     []struct {
					Header string
					At     int
					Fields map[string]string
					Tail   []string
				}
			}
		}
		if err := json.Unmarshal(data, &file); err != nil {
			t.Fatal(path, err)
		}
		for _, v := range file.Vectors {
			for _, p := range v.Parts {
				h := f.header(p.Header)
				if h == nil {
					t.Fatalf("%s: no header %q", v.Name, p.Header)
				}
				known := 0
				for i := range h.Fields {
					fl := &h.Fields[i]
					got := bitsOf(t, v.Hex, 8*p.At+fl.off, fl.Bits)
					want, ok := p.Fields[fl.Name]
					switch {
					case fl.reserved():
						want = "0"
					case !ok:
						t.Errorf("%s: %s.%s is missing", v.Name, h.Name, fl.Name)
						continue
					default:
						known++
					}
					if w := strings.TrimLeft(strings.TrimPrefix(want, "0x"), "0"); strings.TrimLeft(got, "0") != w {
						t.Errorf("%s: %s.%s is %s, want %s", v.Name, h.Name, fl.Name, got, want)
					}
				}
				for i, want := range p.Tail {
					got := bitsOf(t, v.Hex, 8*(p.At+h.len())+32*i, 32)
					if w := strings.TrimLeft(strings.TrimPrefix(want, "0x"), "0"); strings.TrimLeft(got, "0") != w {
						t.Errorf("%s: %s.%s[%d] is %s, want %s", v.Name, h.Name, h.Tail.Name, i, got, want)
					}
				}
				if known != len(p.Fields) {
					t.Errorf("%s: %s has fields that formats.yaml does not know: %v", v.Name, h.Name, p.Fields)
				}
				fields += known
			}
		}
	}
	if fields < 1000 {
		t.Errorf("only %d fields were looked at", fields)
	}
}

// bitsOf returns bits of a packet in hexadecimal.
func bitsOf(t *testing.T, packet string, off, n int) string {
	var b strings.Builder
	for i := 0; i < len(packet); i++ {
		x, err := strconv.ParseUint(packet[i:i+1], 16, 8)
		if err != nil {
			t.Fatal(err)
		}
		for bit := 3; bit >= 0; bit-- {
			b.WriteByte('0' + byte(x>>bit&1))
		}
	}
	s := b.String()[off : off+n]
	s = strings.Repeat("0", -n&3) + s
	var out strings.Builder
	for i := 0; i < len(s); i += 4 {
		x, err := strconv.ParseUint(s[i:i+4], 2, 8)
		if err != nil {
			t.Fatal(err)
		}
		out.WriteString(strconv.FormatUint(x, 16))
	}
	return out.String()
}

func TestFormatsErrors(t *testing.T) {
	for name, c := range map[string]struct{ yaml, want string }{
		"unknown key":    {"versoin: 1", "versoin"},
		"field twice":    {"headers: [{name: A, fields: [{name: X, bits: 16}, {name: X, bits: 16}]}]", "A.X: defined twice"},
		"odd length":     {"headers: [{name: A, fields: [{name: X, bits: 8}]}]", "multiple of 32"},
		"no width":       {"headers: [{name: A, fields: [{name: X}]}]", "no width"},
		"crosses a byte": {"headers: [{name: A, fields: [{name: X, bits: 7}, {name: Y, bits: 3}, {name: Z, bits: 22}]}]", "A.Y: crosses a byte"},
		"not in words":   {"headers: [{name: A, fields: [{name: X, bits: 16}, {name: Y, bits: 64}, {name: Z, bits: 16}]}]", "A.Y: not in whole words"},
		"value twice":    {"enums: [{name: E, prefix: E, values: [{name: A, value: 1}, {name: B, value: 1}]}]", "both 0x1"},
		"value too big":  {"enums: [{name: E, prefix: E, values: [{name: A, value: 256}]}]", "does not fit"},
		"not one bit":    {"enums: [{name: E, prefix: E, flags: true, values: [{name: A, value: 3}]}]", "not one bit"},
		"no such header": {"opcodes: {name: O, prefix: O, values: [{name: A, value: 3, headers: [NOPE]}]}", `no header "NOPE"`},
		"an experiment":  {"enums: [{name: E, prefix: E, range: [0, 9], experiments: [5, 6], values: [{name: A, value: 5}]}]", "not to be given out"},
		"out of range":   {"enums: [{name: E, prefix: E, range: [2, 9], values: [{name: A, value: 1}]}]", "not to be given out"},
		"half a range":   {"enums: [{name: E, prefix: E, range: [2]}]", "two ends"},
	} {
		if _, err := parseFormats([]byte(c.yaml)); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
}

func TestDraw(t *testing.T) {
	h := &Header{Name: "X", Fields: []Field{{Name: "A", Bits: 8}, {Name: "-", Bits: 1}, {Name: "-", Bits: 7}, {Name: "B", Bits: 16},
		{Name: "Long", Bits: 64}}, Tail: &Tail{Name: "T", Words: 2}}
	want := `
 0                   1                   2                   3
 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
|       A       |0|     rsv     |               B               |
+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
|                                                               |
+                             Long                              +
|                                                               |
+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
|                       T (0 to 2 words)                        |
+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+`
	if got := "\n" + strings.Join(draw(h), "\n"); got != want {
		t.Errorf("got%s\nwant%s", got, want)
	}
}

func TestSnake(t *testing.T) {
	for in, want := range map[string]string{"ReadNo": "READ_NO", "NICID": "NICID", "AckH": "ACK_H", "QPN": "QPN", "PathBlock": "PATH_BLOCK"} {
		if got := snake(in); got != want {
			t.Errorf("%s: %s, want %s", in, got, want)
		}
	}
}

func TestFillPlaces(t *testing.T) {
	f := repoFormats(t)
	in := "a\n<!-- generated enum Answer -->\nold\n<!-- end generated -->\nb\n"
	out, err := fillChapter(f, []byte(in))
	if err != nil || !strings.Contains(string(out), "| 0x1 | PENDING |") && !strings.Contains(string(out), "PENDING") || strings.Contains(string(out), "old") {
		t.Fatalf("%v\n%s", err, out)
	}
	again, err := fillChapter(f, out)
	if err != nil || !bytes.Equal(again, out) {
		t.Fatalf("a second run changes\n%s", again)
	}
	for _, bad := range []string{"<!-- generated enum Answer -->\n", "<!-- generated bits Nope -->\n<!-- end generated -->", "<!-- generated nope -->\n<!-- end generated -->"} {
		if _, err := fillChapter(f, []byte(bad)); err == nil {
			t.Errorf("%q: no error", bad)
		}
	}
	code, err := fillComments(f, []byte("// X is.\n//\n//\tbits QPBlock\n//\told\ntype X int\n"))
	if err != nil || !strings.Contains(string(code), "//\t|                             Limit") || strings.Contains(string(code), "old") || !strings.HasSuffix(string(code), "type X int\n") {
		t.Fatalf("%v\n%s", err, code)
	}
	if _, err := fillComments(f, []byte("//\tbits Nope\n")); err == nil {
		t.Error("no error for an unknown header")
	}
}

// write makes a small repository.
func write(t *testing.T, files map[string]string) string {
	t.Helper()
	root := t.TempDir()
	for name, text := range files {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

const chapter = `# One
**[MR-AB-001]** A sender MUST send
it all.

- **[MR-AB-002]** A receiver MUST NOT wait.
- **[MR-AB-003]** It SHOULD NOT sleep.

**[MR-AB-004]** It MAY dream.
`

func TestIndex(t *testing.T) {
	root := write(t, map[string]string{
		"spec/01-a.md":         chapter,
		"spec/exceptions.yaml": "later slice:\n  - MR-AB-002\n",
		"a/a.go":               "package a\n\n//= MR-AB-001\nfunc f() {}\n",
		"a/a_test.go":          "package a\n\n// = MR-AB-001 MR-AB-003\nfunc g() {}\n",
		"c/t.c":                "\t//= MR-AB-001 test\n",
		"testdata/x.go":        "//= MR-NO-001\n",
	})
	_, data, err := makeIndex(root)
	if err != nil {
		t.Fatal(err)
	}
	var reqs []requirement
	if err := json.Unmarshal(data, &reqs); err != nil || len(reqs) != 4 {
		t.Fatalf("%v %s", err, data)
	}
	r := reqs[0]
	if r.Text != "A sender MUST send it all." || r.Level != "MUST" || r.Chapter != "01-a.md" || len(r.Hash) != 12 ||
		strings.Join(r.Code, " ") != "a/a.go" || strings.Join(r.Tests, " ") != "a/a_test.go c/t.c" {
		t.Errorf("%+v", r)
	}
	if reqs[1].Level != "MUST NOT" || reqs[1].Except != "later slice" || reqs[2].Level != "SHOULD NOT" || reqs[3].Level != "MAY" {
		t.Errorf("%+v", reqs[1:])
	}
}

func TestIndexErrors(t *testing.T) {
	none := "later slice: []\n"
	all := "later slice: [MR-AB-001, MR-AB-002]\n"
	for name, c := range map[string]struct {
		exceptions, chapter, code string
		want                      []string
	}{
		"nobody cites a MUST":     {none, chapter, "", []string{"MR-AB-001 is a MUST", "MR-AB-002 is a MUST NOT"}},
		"unknown citation":        {all, chapter, "//= MR-AB-009\n", []string{"cites MR-AB-009"}},
		"unreadable citation":     {all, chapter, "//= MR-AB-1\n", []string{"cannot be read"}},
		"unknown exception":       {all + "x: [MR-AB-010]\n", chapter, "", []string{"MR-AB-010 does not exist"}},
		"exception twice":         {all + "x: [MR-AB-001]\n", chapter, "", []string{"MR-AB-001 is there twice"}},
		"exception that is cited": {all, chapter, "//= MR-AB-002\n//= MR-AB-002 test\n", []string{"MR-AB-002 is cited"}},
		"code without a test":     {none, chapter, "//= MR-AB-001\n", []string{"MR-AB-001 is a MUST that no test cites"}},
		"test without code":       {none, chapter, "//= MR-AB-001 test\n", []string{"MR-AB-001 is a MUST that no code cites"}},
		"id twice":                {all, chapter + "\n**[MR-AB-001]** It MUST not be twice.\n", "", []string{"already in"}},
		"dangling reference":      {all, chapter + "\nSee MR-AB-077.\n", "", []string{"refers to MR-AB-077"}},
		"no level":                {all, chapter + "\n**[MR-AB-005]** It should matter.\n", "", []string{"MR-AB-005 has no MUST"}},
	} {
		root := write(t, map[string]string{"spec/01-a.md": c.chapter, "spec/exceptions.yaml": c.exceptions, "a.go": c.code})
		_, _, err := makeIndex(root)
		for _, want := range c.want {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %v, want %q", name, err, want)
			}
		}
	}
}

func TestPrune(t *testing.T) {
	root := write(t, map[string]string{
		"spec/01-a.md":         chapter,
		"spec/exceptions.yaml": "# head\nlater slice:\n  - MR-AB-002\nnot cited yet:\n  - MR-AB-001\n  - MR-AB-003\n",
		"a.go":                 "//= MR-AB-001\n//= MR-AB-001 test\n",
	})
	if err := run(options{root: root, prune: true}); err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(filepath.Join(root, "spec/exceptions.yaml"))
	if want := "# head\nlater slice:\n  - MR-AB-002\nnot cited yet:\n  - MR-AB-003\n"; err != nil || string(got) != want {
		t.Fatalf("%v\n%s", err, got)
	}
}

// TestCheckFails runs the whole command over a small repository: write, check, break, check.
func TestCheckFails(t *testing.T) {
	yaml, err := os.ReadFile(filepath.Join(repo, "spec/wire/formats.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	root := write(t, map[string]string{
		"spec/01-a.md":           chapter + "\n<!-- generated opcodes -->\n<!-- end generated -->\n\n<!-- generated constants -->\n<!-- end generated -->\n",
		"spec/exceptions.yaml":   "later slice: [MR-AB-001, MR-AB-002]\n",
		"spec/wire/formats.yaml": string(yaml),
		"transport/wire/a.go":    "package wire\n",
	})
	check := func() error { return run(options{root: root, check: true}) }
	if err := check(); err == nil {
		t.Fatal("nothing is generated, and -check passes")
	}
	for _, o := range []options{{root: root, index: true}, {root: root}} {
		if err := run(o); err != nil {
			t.Fatal(err)
		}
	}
	if err := check(); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"transport/wire/offsets_gen.go", "spec/wire/formats.h", "spec/01-a.md", "spec/requirements.json"} {
		path := filepath.Join(root, name)
		good, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		bad := bytes.Replace(good, []byte("WRITE"), []byte("WRITTEN"), 1)
		if bytes.Equal(bad, good) {
			bad = append(bytes.Clone(good), ' ')
		}
		if err := os.WriteFile(path, bad, 0o644); err != nil {
			t.Fatal(err)
		}
		if err := check(); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s was changed: %v", name, err)
		}
		if err := os.WriteFile(path, good, 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

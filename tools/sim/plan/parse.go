package plan

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/metaroce/metaroce/daemon/fail"
	"github.com/metaroce/metaroce/nicemu/labfile"
)

// maxErrors is how many mistakes of a file are told at once.
const maxErrors = 10

// Error is a mistake in a plan file.
type Error struct {
	File string
	Line int    // 0: in an override
	Over string // the override, as path=value
	Msg  string
}

// Error prints where the mistake is and what it is.
func (e *Error) Error() string {
	if e.Line == 0 {
		return fmt.Sprintf("%s: with %s: %s", e.File, e.Over, e.Msg)
	}
	return fmt.Sprintf("%s:%d: %s", e.File, e.Line, e.Msg)
}

// Load reads and checks a plan file and that the files which it names are there.
func Load(path string) (*Plan, error) { return LoadWith(path, nil) }

// LoadWith is Load with overrides, as of ParseWith.
func LoadWith(path string, overrides map[string]string) (*Plan, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, fail.Usagef("cannot read the plan: %w", err)
	}
	pl, err := ParseWith(path, b, overrides)
	if err != nil {
		return nil, err
	}
	var errs []error
	for i := range pl.Workload {
		w := &pl.Workload[i]
		if w.File == "" {
			continue
		}
		b, err := os.ReadFile(pl.Path(w.File))
		if err != nil {
			errs = append(errs, &Error{File: path, Line: w.Line, Msg: fmt.Sprintf("file: %v; it is looked for beside the plan", err)})
			continue
		}
		sum := sha256.Sum256(b)
		w.Sum = hex.EncodeToString(sum[:])
	}
	return pl, join(errs)
}

// Parse reads a plan file. name is its name for messages and, without a name: key, for the plan. The error joins up to ten
// *Error and carries exit code fail.Usage.
func Parse(name string, b []byte) (*Plan, error) { return ParseWith(name, b, nil) }

// ParseWith is Parse after some values have been replaced: overrides maps paths such as "topology.hosts", "events[0].loss" or
// "workload[0]" to YAML values; an empty value takes the key away.
func ParseWith(name string, b []byte, overrides map[string]string) (*Plan, error) {
	p := &parser{file: name, over: map[*yaml.Node]string{}}
	doc, err := p.document(b)
	if err != nil {
		return nil, join([]error{err})
	}
	var paths []string
	for path := range overrides {
		paths = append(paths, path)
	}
	slices.Sort(paths)
	for _, path := range paths {
		if err := p.override(doc, path, overrides[path]); err != nil {
			return nil, join([]error{err})
		}
	}
	pl := &Plan{File: name}
	p.plan(doc, pl)
	if err := join(p.errs); err != nil {
		return nil, err
	}
	return pl, nil
}

func join(errs []error) error {
	if len(errs) == 0 {
		return nil
	}
	slices.SortStableFunc(errs, func(a, b error) int { return lineOf(a) - lineOf(b) })
	if n := len(errs) - maxErrors; n > 0 {
		errs = append(errs[:maxErrors:maxErrors], fmt.Errorf("and %d more", n))
	}
	return fail.Usagef("%w", errors.Join(errs...))
}

func lineOf(err error) int {
	var e *Error
	if errors.As(err, &e) {
		return e.Line
	}
	return 0
}

// parser reads a plan file and collects its mistakes.
type parser struct {
	file  string
	errs  []error
	notes []string
	over  map[*yaml.Node]string // nodes that overrides made: path=value
}

func (p *parser) mistake(n *yaml.Node, format string, args ...any) *Error {
	e := &Error{File: p.file, Line: max(1, n.Line), Msg: fmt.Sprintf(format, args...)}
	if o := p.over[n]; o != "" {
		e.Line, e.Over = 0, o
	}
	return e
}

func (p *parser) errf(n *yaml.Node, format string, args ...any) {
	p.errs = append(p.errs, p.mistake(n, format, args...))
}

func (p *parser) note(n *yaml.Node, format string, args ...any) {
	p.notes = append(p.notes, p.mistake(n, format, args...).Error())
}

var yamlLine = regexp.MustCompile(`line (\d+): (.*)`)

// document returns the mapping that a plan is.
func (p *parser) document(b []byte) (*yaml.Node, error) {
	var doc yaml.Node
	dec := yaml.NewDecoder(bytes.NewReader(b))
	err := dec.Decode(&doc)
	if err == nil {
		if err = dec.Decode(&yaml.Node{}); err == nil {
			return nil, &Error{File: p.file, Line: 1, Msg: "more than one YAML document; a plan is one"}
		}
	} else if errors.Is(err, io.EOF) {
		return nil, &Error{File: p.file, Line: 1, Msg: "the file is empty; a plan has topology: and workload:"}
	}
	if !errors.Is(err, io.EOF) {
		return nil, p.syntax(strings.TrimPrefix(err.Error(), "yaml: "))
	}
	if doc.Content[0].Kind != yaml.MappingNode {
		return nil, p.mistake(doc.Content[0], "a plan is a list of `key: value`, such as `topology: {…}` and `workload: […]`")
	}
	return doc.Content[0], nil
}

// syntax is a mistake that the YAML decoder found.
func (p *parser) syntax(msg string) error {
	line := 1
	if m := yamlLine.FindStringSubmatch(msg); m != nil {
		line, _ = strconv.Atoi(m[1])
		msg = m[2]
	}
	if strings.HasPrefix(msg, "mapping values are not allowed") {
		msg += "; text with a colon needs quotes"
	}
	return &Error{File: p.file, Line: line, Msg: msg}
}

// plan reads the whole: what later keys mean depends on the topology, so that comes first wherever it stands.
func (p *parser) plan(n *yaml.Node, pl *Plan) {
	parts := map[string]*yaml.Node{}
	section := func(name string) func(*yaml.Node) { return func(v *yaml.Node) { parts[name] = v } }
	pl.Seed = 1
	p.mapping(n, "the plan", keys{
		"name":      func(v *yaml.Node) { p.text(v, "name", &pl.Name) },
		"title":     func(v *yaml.Node) { p.text(v, "title", &pl.Title) },
		"seed":      func(v *yaml.Node) { p.seed(v, &pl.Seed) },
		"topology":  section("topology"),
		"switch":    section("switch"),
		"transport": section("transport"),
		"workload":  section("workload"),
		"events":    section("events"),
		"run":       section("run"),
	})
	if pl.Name == "" {
		pl.Name = strings.TrimSuffix(filepath.Base(p.file), filepath.Ext(p.file))
	}
	if parts["topology"] == nil || parts["workload"] == nil {
		p.errf(n, "a plan needs `topology:` and `workload:`")
		return
	}
	if !p.topology(parts["topology"], &pl.Topology) {
		return // nothing else can be judged
	}
	p.transport(parts["transport"], pl)
	p.switches(parts["switch"], pl)
	p.workload(parts["workload"], pl)
	p.events(parts["events"], pl)
	p.run(parts["run"], pl)
	pl.Notes = p.notes
}

// keys maps a known key to what reads its value.
type keys map[string]func(*yaml.Node)

// mapping reads the keys of n and returns where each stands.
func (p *parser) mapping(n *yaml.Node, what string, known keys) map[string]*yaml.Node {
	at := map[string]*yaml.Node{}
	if n.Kind != yaml.MappingNode {
		p.errf(n, "%s must be a list of `key: value`", what)
		return at
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		k, v := n.Content[i], follow(n.Content[i+1])
		read, ok := known[k.Value]
		switch {
		case !ok:
			p.unknown(k, "key", k.Value, " in "+what, names(known))
		case at[k.Value] != nil:
			p.errf(k, "%q is given twice", k.Value)
		default:
			at[k.Value] = k
			read(v)
		}
	}
	return at
}

func follow(n *yaml.Node) *yaml.Node {
	if n.Kind == yaml.AliasNode && n.Alias != nil {
		return n.Alias
	}
	return n
}

func names(known keys) []string {
	var s []string
	for name := range known {
		s = append(s, name)
	}
	slices.Sort(s)
	return s
}

func (p *parser) unknown(n *yaml.Node, kind, word, where string, known []string) {
	if near := labfile.Nearest(word, known); near != "" {
		p.errf(n, "unknown %s %q%s; did you mean %q?", kind, word, where, near)
		return
	}
	p.errf(n, "unknown %s %q%s; known: %s", kind, word, where, strings.Join(known, ", "))
}

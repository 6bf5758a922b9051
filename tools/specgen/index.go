package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"sort"
	"strings"

	"go.yaml.in/yaml/v3"
)

const (
	indexName      = "spec/requirements.json"
	exceptionsName = "spec/exceptions.yaml"
	notCitedYet    = "not cited yet"
)

// requirement is a numbered sentence of the spec. Files are named without lines, so that the index changes only
// when a citation or a text does.
type requirement struct {
	ID      string   `json:"id"`
	Level   string   `json:"level"`
	Text    string   `json:"text"`
	Hash    string   `json:"hash"` // of the text, white space folded
	Chapter string   `json:"chapter"`
	Code    []string `json:"code,omitempty"`
	Tests   []string `json:"tests,omitempty"`
	Except  string   `json:"exception,omitempty"`
}

// must reports whether somebody has to do it, and so has to be shown doing it.
func (r *requirement) must() bool { return strings.HasPrefix(r.Level, "MUST") }

// proven reports whether there is both who does it and who shows it.
func (r *requirement) proven() bool { return len(r.Code) > 0 && len(r.Tests) > 0 }

// makeIndex returns the index and everything that is wrong with requirements and citations.
func makeIndex(root string) (string, []byte, error) {
	reqs, err := readRequirements(root)
	if err != nil {
		return indexName, nil, err
	}
	var errs []error
	errs = append(errs, cite(root, reqs)...)
	errs = append(errs, except(root, reqs)...)

	list := make([]*requirement, 0, len(reqs))
	for _, id := range sortedKeys(reqs) {
		r := reqs[id]
		if r.must() && !r.proven() && r.Except == "" {
			lacks := "no code and no test cites"
			switch {
			case len(r.Code) > 0:
				lacks = "no test cites"
			case len(r.Tests) > 0:
				lacks = "no code cites"
			}
			errs = append(errs, fmt.Errorf("%s: %s is a %s that %s; see %s", r.Chapter, id, r.Level, lacks, exceptionsName))
		}
		list = append(list, r)
	}
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", " ")
	if err := enc.Encode(list); err != nil {
		return indexName, nil, err
	}
	return indexName, b.Bytes(), errors.Join(errs...)
}

var (
	reqRE   = regexp.MustCompile(`\*\*\[(MR-[A-Z]{2,4}-\d{3})\]\*\* `)
	levelRE = regexp.MustCompile(`\b(MUST NOT|MUST|SHOULD NOT|SHOULD|MAY)\b`)
	// endRE finds where the text of a requirement ends: an empty line, another item, a table, a heading.
	endRE   = regexp.MustCompile(`\n\s*(\n|[-*|#<]|\d+\.)`)
	spaceRE = regexp.MustCompile(`\s+`)
)

func readRequirements(root string) (map[string]*requirement, error) {
	paths, err := filepath.Glob(filepath.Join(root, "spec/*.md"))
	if err != nil {
		return nil, err
	}
	reqs := map[string]*requirement{}
	named := map[string]string{} // ids in the text, and a chapter that names them
	var errs []error
	for _, path := range paths {
		data, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		chapter := filepath.Base(path)
		for _, id := range idRE.FindAllString(string(data), -1) {
			named[id] = chapter
		}
		for _, r := range parseChapter(chapter, string(data)) {
			switch {
			case reqs[r.ID] != nil:
				errs = append(errs, fmt.Errorf("%s: %s is already in %s", chapter, r.ID, reqs[r.ID].Chapter))
			case r.Level == "":
				errs = append(errs, fmt.Errorf("%s: %s has no MUST, SHOULD or MAY", chapter, r.ID))
			}
			reqs[r.ID] = r
		}
	}
	for _, id := range sortedKeys(named) {
		if reqs[id] == nil && !strings.HasSuffix(id, "-000") {
			errs = append(errs, fmt.Errorf("%s: refers to %s, which does not exist", named[id], id))
		}
	}
	return reqs, errors.Join(errs...)
}

func parseChapter(chapter, text string) (reqs []*requirement) {
	for _, m := range reqRE.FindAllStringSubmatchIndex(text, -1) {
		body := text[m[1]:]
		if end := endRE.FindStringIndex(body); end != nil {
			body = body[:end[0]]
		}
		if next := reqRE.FindStringIndex(body); next != nil {
			body = body[:next[0]]
		}
		body = strings.TrimSpace(spaceRE.ReplaceAllString(body, " "))
		sum := sha256.Sum256([]byte(body))
		reqs = append(reqs, &requirement{ID: text[m[2]:m[3]], Level: levelRE.FindString(body), Text: body,
			Hash: hex.EncodeToString(sum[:6]), Chapter: chapter})
	}
	return reqs
}

// A citation is a comment of its own: "//= MR-REL-012", several ids if need be, and "test" beside tests. gofmt puts
// a space before the "=" in doc comments.
var (
	citeRE = regexp.MustCompile(`(?m)^\s*(?://|#) ?= ((?:MR-[A-Z]{2,4}-\d{3}[ ,]*)+)(test)?\s*$`)
	idRE   = regexp.MustCompile(`MR-[A-Z]{2,4}-\d{3}`)
	// nearRE finds what looks like a citation and is none.
	nearRE = regexp.MustCompile(`(?m)^\s*(?://|#) ?=+ ?MR.*$`)
)

var citing = map[string]bool{".go": true, ".c": true, ".h": true, ".sh": true, ".py": true}

func cite(root string, reqs map[string]*requirement) (errs []error) {
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if n := d.Name(); n == ".git" || n == "testdata" || n == "shared" {
				return fs.SkipDir
			}
			return nil
		}
		if !citing[filepath.Ext(path)] || !d.Type().IsRegular() {
			return nil
		}
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		errs = append(errs, citeFile(rel, data, reqs)...)
		return nil
	})
	if err != nil {
		errs = append(errs, err)
	}
	for _, r := range reqs {
		sort.Strings(r.Code)
		sort.Strings(r.Tests)
	}
	return errs
}

func citeFile(rel string, data []byte, reqs map[string]*requirement) (errs []error) {
	if near, whole := len(nearRE.FindAll(data, -1)), len(citeRE.FindAll(data, -1)); near != whole {
		errs = append(errs, fmt.Errorf("%s: a citation that cannot be read; write //= MR-XXX-000 or //= MR-XXX-000 test", rel))
	}
	for _, m := range citeRE.FindAllSubmatch(data, -1) {
		test := len(m[2]) > 0 || strings.HasSuffix(rel, "_test.go")
		for _, id := range idRE.FindAllString(string(m[1]), -1) {
			r := reqs[id]
			switch {
			case r == nil:
				errs = append(errs, fmt.Errorf("%s: cites %s, which does not exist", rel, id))
			case test:
				r.Tests = addOnce(r.Tests, rel)
			default:
				r.Code = addOnce(r.Code, rel)
			}
		}
	}
	return errs
}

func addOnce(list []string, s string) []string {
	for _, x := range list {
		if x == s {
			return list
		}
	}
	return append(list, s)
}

// except reads the exceptions: reason, then the ids it holds for.
func except(root string, reqs map[string]*requirement) (errs []error) {
	data, err := os.ReadFile(filepath.Join(root, exceptionsName))
	if err != nil {
		return []error{err}
	}
	var list map[string][]string
	if err := yaml.Unmarshal(data, &list); err != nil {
		return []error{fmt.Errorf("%s: %w", exceptionsName, err)}
	}
	for _, reason := range sortedKeys(list) {
		for _, id := range list[reason] {
			r := reqs[id]
			switch {
			case r == nil:
				errs = append(errs, fmt.Errorf("%s: %s does not exist", exceptionsName, id))
			case r.Except != "":
				errs = append(errs, fmt.Errorf("%s: %s is there twice", exceptionsName, id))
			case r.proven() && reason != notCitedYet:
				errs = append(errs, fmt.Errorf("%s: %s is cited, so it is no exception (%s)", exceptionsName, id, reason))
			case !r.proven(): // "not cited yet" ends by itself
				r.Except = reason
			}
		}
	}
	return errs
}

// prune takes cited requirements off the list of those not cited yet.
func prune(root string) error {
	reqs, err := readRequirements(root)
	if err != nil {
		return err
	}
	if errs := cite(root, reqs); len(errs) > 0 {
		return errors.Join(errs...)
	}
	path := filepath.Join(root, exceptionsName)
	data, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	var out []string
	under := false
	for _, line := range strings.Split(string(data), "\n") {
		if strings.HasSuffix(line, ":") {
			under = strings.TrimSuffix(line, ":") == notCitedYet
		}
		id := idRE.FindString(line)
		if r := reqs[id]; under && id != "" && (r == nil || r.proven()) {
			continue
		}
		out = append(out, line)
	}
	return writeIfChanged(path, []byte(strings.Join(out, "\n")))
}

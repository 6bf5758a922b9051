package sweep

import (
	"bytes"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"

	"github.com/metaroce/metaroce/tools/sim/result"
)

// PointState is a point in sweep.json.
type PointState struct {
	Name    string   `json:"name"`
	Digest  string   `json:"digest"`
	Set     []Value  `json:"set"`
	Seed    uint64   `json:"seed"`
	State   State    `json:"state"`
	Tries   int      `json:"tries"` // runs that ended, since the sweep last began or went on
	Exit    int      `json:"exit"`
	Why     string   `json:"why,omitempty"`
	Stderr  []string `json:"stderr,omitempty"`
	Seconds float64  `json:"wall_s"`
	Attempt string   `json:"attempt,omitempty"` // of the run that is under way
	Job     string   `json:"job,omitempty"`     // Slurm's, of that run

	out Outcome
}

// status is sweep.json.
type status struct {
	Sweep    string       `json:"sweep"`
	Plan     string       `json:"plan"`
	Input    string       `json:"input"` // digest of the plan and of what it reads
	Commit   string       `json:"commit"`
	Engine   string       `json:"engine"`
	Complete bool         `json:"complete"` // every point is done
	Arrays   []*array     `json:"slurm,omitempty"`
	Points   []PointState `json:"points"`
}

func loadStatus(dir string) (*status, error) {
	var s status
	err := readJSON(filepath.Join(dir, "sweep.json"), &s)
	if errors.Is(err, os.ErrNotExist) {
		return &status{}, nil
	}
	return &s, err
}

// take notes an outcome.
func (p *PointState) take(o Outcome) {
	p.State, p.Exit, p.Why, p.Stderr, p.Seconds, p.out = o.State, o.Exit, o.Why, o.Stderr, o.Seconds, o
	p.Attempt, p.Job = "", ""
	if o.State == stopped {
		p.State, p.Exit, p.Why, p.Stderr, p.out = Waiting, 0, "", nil, Outcome{}
	}
}

// Row is a point in results.json and results.csv. Summary and what follows it are there for done and partial points only.
type Row struct {
	Point   string          `json:"point"`
	State   State           `json:"state"`
	Partial bool            `json:"partial"` // of every point that is not done
	Set     []Value         `json:"set"`
	Seed    uint64          `json:"seed"`
	Exit    int             `json:"exit"`
	Why     string          `json:"why,omitempty"`
	Wall    float64         `json:"wall_s"`
	Summary *result.Summary `json:"summary,omitempty"`
	Groups  []result.Group  `json:"groups,omitempty"`
	Hash    string          `json:"hash,omitempty"`
}

// Results is results.json.
type Results struct {
	Sweep    string `json:"sweep"`
	Plan     string `json:"plan"`
	Commit   string `json:"commit"`
	Complete bool   `json:"complete"`
	Points   []Row  `json:"points"`
}

func (s *status) results() Results {
	r := Results{s.Sweep, s.Plan, s.Commit, s.Complete, []Row{}}
	for _, p := range s.Points {
		row := Row{Point: p.Name, State: p.State, Partial: p.State != Done, Set: p.Set, Seed: p.Seed, Exit: p.Exit, Why: p.Why, Wall: p.Seconds}
		if p.State == Done || p.State == Partial {
			row.Summary, row.Groups, row.Hash = p.out.Summary, p.out.Groups, p.out.Hash
		}
		r.Points = append(r.Points, row)
	}
	return r
}

// summaryNames are the columns of result.Summary.
func summaryNames() (names []string) {
	t := reflect.TypeFor[result.Summary]()
	for i := range t.NumField() {
		name, _, _ := strings.Cut(t.Field(i).Tag.Get("json"), ",")
		names = append(names, name)
	}
	return names
}

// table is results.csv: what varies, then the summary, then the longest part of the workload and the lowest bus bandwidth.
func (r Results) table(keys []string) ([]byte, error) {
	var b bytes.Buffer
	w := csv.NewWriter(&b)
	head := append(append([]string{"point", "state", "partial"}, keys...), "seed")
	head = append(append(head, summaryNames()...), "group_s_max", "busbw_bps_min", "wall_s", "hash", "exit", "why")
	_ = w.Write(head) // errors of a buffer: Error below tells
	for _, p := range r.Points {
		row := []string{p.Point, string(p.State), strconv.FormatBool(p.Partial)}
		for _, k := range append(keys[:len(keys):len(keys)], "seed") {
			v, _ := Point{Set: p.Set, Seed: p.Seed}.get(k) // a listed point need not have every key
			row = append(row, v)
		}
		row = append(row, cells(p)...)
		_ = w.Write(append(row, strconv.FormatFloat(p.Wall, 'f', 2, 64), p.Hash, strconv.Itoa(p.Exit), p.Why))
	}
	w.Flush()
	return b.Bytes(), w.Error()
}

func cells(p Row) []string {
	if p.Summary == nil {
		return make([]string, len(summaryNames())+2)
	}
	var out []string
	v := reflect.ValueOf(*p.Summary)
	for i := range v.NumField() {
		switch f := v.Field(i); f.Kind() {
		case reflect.Float64:
			out = append(out, strconv.FormatFloat(f.Float(), 'g', -1, 64))
		default:
			out = append(out, fmt.Sprint(f.Interface()))
		}
	}
	longest, slowest := "", ""
	for i, g := range p.Groups {
		if i == 0 || g.Seconds > num(longest) {
			longest = strconv.FormatFloat(g.Seconds, 'g', -1, 64)
		}
		if i == 0 || g.BusBps < num(slowest) {
			slowest = strconv.FormatFloat(g.BusBps, 'g', -1, 64)
		}
	}
	return append(out, longest, slowest)
}

func num(s string) float64 {
	v, _ := strconv.ParseFloat(s, 64) // of FormatFloat
	return v
}

// save writes sweep.json; with results the two files of results, too.
func (s *status) save(dir string, keys []string, results bool) error {
	s.Complete = true
	for _, p := range s.Points {
		s.Complete = s.Complete && p.State == Done
	}
	if results {
		r := s.results()
		text, err := r.table(keys)
		if err == nil {
			err = writeFile(filepath.Join(dir, "results.csv"), text)
		}
		if err == nil {
			err = writeJSON(filepath.Join(dir, "results.json"), r)
		}
		if err != nil {
			return err
		}
	}
	data, err := json.Marshal(s) // small: it is written often
	if err != nil {
		return err
	}
	return writeFile(filepath.Join(dir, "sweep.json"), append(data, '\n'))
}

//go:build clients

package clients

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/metaroce/metaroce/tests/clients/table"
)

const document, printed = "../../docs/compatibility.md", "../../build/clients/table.txt"

var update = flag.Bool("update", false, "write the results into docs/compatibility.md")

// suite is a group of programs, most of them of one package.
type suite struct {
	name     string
	packages string // Debian's, whose versions the document names
	about    string // said below the heading
	half     string // of the rows: a or b, for CI's sake
	rows     []row
}

// row is a program and a feature of it, and how to see that it works.
type row struct {
	program, feature string
	net              network
	smoke            bool
	none             string // what the program says of something that the NIC will never have, a regular expression; why is in the suite's about
	// run returns nil when the program did what it should, and otherwise an error with all that was said.
	run func(l *lab) error
}

func (s *suite) row(r row, res table.Result) table.Row {
	return table.Row{Suite: s.name, Program: r.program, Feature: r.feature, Network: r.net.name, Result: res}
}

func suites() []*suite {
	return []*suite{pingpongs(), perftest(), connected(), ucx(), mpi(), fabric(), others()}
}

// asked reports whether MR_CLIENTS wants the row: smoke (default), a, b, all.
func asked(s *suite, r row) bool {
	switch want := os.Getenv("MR_CLIENTS"); want {
	case "", "smoke":
		return r.smoke
	case "all":
		return true
	default:
		return want == s.half
	}
}

// no is how programs say that the NIC has not got what they want. 95 is EOPNOTSUPP.
var no = regexp.MustCompile(`(?i)not supported|unsupported|Couldn't create|Unable to create QP|Failed to create QP|XRC Domain 95` +
	`|isn't ODP capable|doesn't support|Unable to access performance counters`)

func (r row) judge(err error) table.Result {
	switch {
	case err == nil:
		return table.OK
	case r.none != "" && regexp.MustCompile(r.none).MatchString(err.Error()):
		return table.None
	case no.MatchString(err.Error()):
		return table.NotYet
	}
	return table.Fails
}

func readTable(t testing.TB) (front string, kept []table.Row) {
	t.Helper()
	text, err := os.ReadFile(document)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	if kept, err = table.Parse(string(text)); err != nil {
		t.Fatalf("%s: %v", document, err)
	}
	return table.Front(string(text)), kept
}

func plan() []table.Row {
	var rows []table.Row
	for _, s := range suites() {
		for _, r := range s.rows {
			rows = append(rows, s.row(r, ""))
		}
	}
	return rows
}

// TestPlan: the document has a result for each row there is, and no others; each program has a row in the short run.
func TestPlan(t *testing.T) {
	if *update {
		return // TestClients is about to write it
	}
	_, kept := readTable(t)
	d := table.Compare(kept, plan(), nil)
	for _, name := range d.New {
		t.Errorf("%s: no result in %s; run it with -update", name, document)
	}
	for _, name := range d.Gone {
		t.Errorf("%s: in %s, and no test runs it; run anything with -update", name, document)
	}
	seen := map[string]int{}
	smoke := map[string]bool{}
	for _, s := range suites() {
		for _, r := range s.rows {
			seen[s.name+r.program+r.feature]++
			smoke[r.program] = smoke[r.program] || r.smoke
		}
	}
	for name, n := range seen {
		if n > 1 {
			t.Errorf("%s: %d rows of this name", name, n)
		}
	}
	for program, ok := range smoke {
		if !ok {
			t.Errorf("%s has no row in the short run", program)
		}
	}
}

// TestClients runs the rows that are asked for, and compares with the table.
func TestClients(t *testing.T) {
	front, kept := readTable(t)
	old := map[string]table.Result{}
	key := func(r table.Row) string { return r.Suite + "|" + r.Program + "|" + r.Feature }
	for _, r := range kept {
		old[key(r)] = r.Result
	}
	var ran []table.Row
	for _, s := range suites() {
		t.Run(s.name, func(t *testing.T) {
			for _, r := range s.rows {
				if !asked(s, r) {
					continue
				}
				t.Run(r.program+" "+r.feature, func(t *testing.T) {
					needPrograms(t, r.program)
					err := r.run(on(t, r.net))
					is := s.row(r, r.judge(err))
					ran = append(ran, is)
					t.Log(is)
					if err != nil {
						forget(r.net) // whatever it left behind
					}
					if was := old[key(is)]; err != nil && (is.Result.Worse(was) || was == "" || *update) {
						t.Logf("%v", err)
						if !*update {
							t.Errorf("the table says %q", was)
						}
					}
				})
			}
		})
	}
	report(t, front, kept, ran)
}

// report prints the table and says where it differs from the one kept.
func report(t *testing.T, front string, kept, ran []table.Row) {
	var b strings.Builder
	for _, r := range ran {
		fmt.Fprintln(&b, r)
	}
	d := table.Compare(kept, plan(), ran)
	for _, text := range d.Worse {
		fmt.Fprintln(&b, "WORSE  "+text)
	}
	for _, text := range d.Better {
		fmt.Fprintln(&b, "better "+text+" (go test -tags clients ./tests/clients -run … -args -update)")
	}
	fmt.Fprintf(&b, "%d rows: %s\n", len(ran), table.Count(ran))
	t.Log("\n" + b.String())
	if err := os.MkdirAll("../../build/clients", 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(printed, []byte(b.String()), 0o644); err != nil {
		t.Fatal(err)
	}
	if !*update {
		return
	}
	about := map[string]string{}
	for _, s := range suites() {
		about[s.name] = strings.TrimSpace(s.about + " Packages: " + versions(t, s.packages) + ".")
	}
	text := table.Write(front, about, table.Merge(kept, plan(), ran))
	if err := os.WriteFile(document, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// versions says which versions of packages this machine has.
func versions(t *testing.T, packages string) string {
	args := append([]string{"-W", "-f", "${Package} ${Version}\n"}, strings.Fields(packages)...)
	out, err := exec.Command("dpkg-query", args...).Output()
	if err != nil {
		t.Fatalf("dpkg-query: %v; the table names Debian's packages, so it is updated on Debian", err)
	}
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	slices.Sort(lines)
	return strings.Join(lines, ", ")
}

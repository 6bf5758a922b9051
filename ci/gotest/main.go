// Command gotest runs `go test` and shows what a reader of a CI log needs: one line a package, the whole output of a
// test that failed, and at the end how many passed, failed and were skipped, each skip with its reason. It adds its
// counts to a file so that ci/run.sh can sum over jobs. With MR_TEST_REQUIRE=all a skip is a failure.
//
//	gotest [-counts FILE] -- GO-TEST-ARGUMENTS
package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"slices"
	"strings"
)

// event is a line of `go test -json`; see `go doc test2json`.
type event struct {
	Action  string
	Package string
	Test    string
	Output  string
}

type report struct {
	out                     io.Writer
	passed, failed, skipped int
	output                  map[string][]string // package + test → its lines
	failedIn                map[string]bool     // packages with a failed test
	skips                   []string
	fails                   []string // a line each
	short                   bool     // run with -short: leaving out what is slow is what it is for
}

func newReport(out io.Writer) *report {
	return &report{out: out, output: map[string][]string{}, failedIn: map[string]bool{}}
}

func main() {
	counts := flag.String("counts", "", "append PASSED FAILED SKIPPED to this file")
	goCmd := flag.String("go", "go", "the go command")
	flag.Parse()
	r := newReport(os.Stdout)
	r.short = slices.Contains(flag.Args(), "-short")
	err := r.run(*goCmd, flag.Args())
	r.summary()
	if *counts != "" {
		if e := appendCounts(*counts, r); e != nil {
			err = errors.Join(err, e)
		}
	}
	if err == nil && r.passed+r.failed+r.skipped == 0 && !r.short { // a name or a tag that nothing has any more
		err = errors.New("no test ran")
	}
	if err == nil && r.skipped > 0 && os.Getenv("MR_TEST_REQUIRE") == "all" {
		err = errors.New("skipped tests, and MR_TEST_REQUIRE=all asks for every one")
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "gotest: %v\n", err)
		os.Exit(1)
	}
}

// run starts go test and reads it to its end.
func (r *report) run(goCmd string, args []string) error {
	cmd := exec.Command(goCmd, append([]string{"test", "-json"}, args...)...)
	cmd.Stderr = os.Stderr
	pipe, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	if err := r.read(pipe); err != nil {
		return errors.Join(err, cmd.Wait())
	}
	if err := cmd.Wait(); err != nil {
		return fmt.Errorf("go test %s: %w", strings.Join(args, " "), err)
	}
	return nil
}

func (r *report) read(in io.Reader) error {
	s := bufio.NewScanner(in)
	s.Buffer(nil, 16<<20)
	for s.Scan() {
		var e event
		if json.Unmarshal(s.Bytes(), &e) != nil {
			fmt.Fprintln(r.out, s.Text()) // a line of go itself
			continue
		}
		r.handle(e)
	}
	return s.Err()
}

func (r *report) handle(e event) {
	key := e.Package + " " + e.Test
	switch {
	case e.Action == "build-output":
		fmt.Fprint(r.out, e.Output)
	case e.Action == "output" && e.Test == "":
		if w, _, _ := strings.Cut(e.Output, "\t"); w == "ok  " || strings.HasPrefix(w, "FAIL") || strings.HasPrefix(w, "panic") {
			fmt.Fprint(r.out, e.Output)
		} else {
			r.output[key] = append(r.output[key], e.Output)
		}
	case e.Action == "output":
		r.output[key] = append(r.output[key], e.Output)
	case e.Action == "fail" && e.Test != "":
		r.failed++
		r.failedIn[e.Package] = true
		r.fails = append(r.fails, fmt.Sprintf("fail: %s %s: %s", e.Package, e.Test, reason(r.output[key])))
		fmt.Fprintf(r.out, "--- %s %s\n%s", e.Package, e.Test, strings.Join(r.output[key], ""))
		delete(r.output, key)
	case e.Action == "fail":
		r.failPackage(e)
	case e.Action == "pass" && e.Test != "":
		r.passed++
		delete(r.output, key)
	case e.Action == "skip" && r.short: // it ran, or runs, in the job without -short
		delete(r.output, key)
	case e.Action == "skip" && e.Test != "":
		r.skipped++
		r.skips = append(r.skips, fmt.Sprintf("skip: %s %s: %s", e.Package, e.Test, reason(r.output[key])))
		delete(r.output, key)
	}
}

// failPackage is for the end of a package that failed. Without a failed test it did not build, or it ended by itself: out
// of time, a data race, os.Exit. Then whatever was running has the explanation.
func (r *report) failPackage(e event) {
	if !r.failedIn[e.Package] {
		r.failed++
		r.fails = append(r.fails, fmt.Sprintf("fail: %s: the package did not build, or ended by itself", e.Package))
	}
	for _, key := range slices.Sorted(maps.Keys(r.output)) {
		if strings.HasPrefix(key, e.Package+" ") {
			fmt.Fprint(r.out, strings.Join(r.output[key], ""))
			delete(r.output, key)
		}
	}
}

// reason picks the last words given to t.Skip or t.Error out of a test's output: "    file.go:12: words".
func reason(lines []string) string {
	for _, l := range slices.Backward(lines) {
		l = strings.TrimSpace(l)
		if l == "" || strings.HasPrefix(l, "===") || strings.HasPrefix(l, "---") {
			continue
		}
		if _, words, ok := strings.Cut(l, ".go:"); ok {
			_, l, _ = strings.Cut(words, ": ")
		}
		return l
	}
	return "no reason given"
}

func (r *report) summary() {
	for _, s := range r.skips {
		fmt.Fprintln(r.out, s)
	}
	fmt.Fprintf(r.out, "tests: %d passed, %d failed, %d skipped\n", r.passed, r.failed, r.skipped)
}

func appendCounts(path string, r *report) error {
	f, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	fmt.Fprintln(f, r.passed, r.failed, r.skipped)
	for _, s := range append(r.skips, r.fails...) {
		fmt.Fprintln(f, s)
	}
	return f.Close()
}

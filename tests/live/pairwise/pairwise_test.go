package pairwise

import (
	"flag"
	"os"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write matrix.txt")

func TestTableIsCurrent(t *testing.T) {
	var b strings.Builder
	b.WriteString("# wire mtu program size qps mode; written by go test ./tests/live/pairwise -update\n")
	for _, r := range generate() {
		b.WriteString(r.String() + "\n")
	}
	if *update {
		if err := os.WriteFile("matrix.txt", []byte(b.String()), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if matrix != b.String() {
		t.Error("matrix.txt is not what generate makes; run go test ./tests/live/pairwise -update")
	}
}

func TestTableCoversEveryPair(t *testing.T) {
	rows, err := Table()
	if err != nil {
		t.Fatal(err)
	}
	have := map[pair]bool{}
	for _, r := range rows {
		if !r.valid() {
			t.Errorf("%v: not a combination that makes sense", r)
		}
		for _, p := range r.pairs() {
			have[p] = true
		}
	}
	for _, r := range All() {
		for _, p := range r.pairs() {
			if !have[p] {
				t.Fatalf("no row has %q with %q", p.a, p.b)
			}
		}
	}
	t.Logf("%d rows of %d", len(rows), len(All()))
}

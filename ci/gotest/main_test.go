package main

import (
	"strings"
	"testing"
)

func TestReport(t *testing.T) {
	const in = `{"Action":"run","Package":"p","Test":"TestA"}
{"Action":"output","Package":"p","Test":"TestA","Output":"=== RUN   TestA\n"}
{"Action":"output","Package":"p","Test":"TestA","Output":"    a_test.go:7: not equal\n"}
{"Action":"fail","Package":"p","Test":"TestA"}
{"Action":"output","Package":"p","Test":"TestB","Output":"    b_test.go:9: no TAP: permission denied\n"}
{"Action":"output","Package":"p","Test":"TestB","Output":"--- SKIP: TestB (0.00s)\n"}
{"Action":"skip","Package":"p","Test":"TestB"}
{"Action":"output","Package":"p","Test":"TestC","Output":"    quiet\n"}
{"Action":"pass","Package":"p","Test":"TestC"}
{"Action":"output","Package":"p","Output":"FAIL\tp\t0.01s\n"}
{"Action":"fail","Package":"p"}
{"Action":"build-output","ImportPath":"q","Output":"q.go:1: syntax error\n"}
{"Action":"fail","Package":"q","FailedBuild":"q"}
{"Action":"output","Package":"r","Test":"TestD","Output":"panic: test timed out\n"}
{"Action":"output","Package":"r","Output":"FAIL\tr\t1s\n"}
{"Action":"fail","Package":"r"}
`
	var out strings.Builder
	r := newReport(&out)
	if err := r.read(strings.NewReader(in)); err != nil {
		t.Fatal(err)
	}
	r.summary()
	const want = `--- p TestA
=== RUN   TestA
    a_test.go:7: not equal
FAIL	p	0.01s
q.go:1: syntax error
FAIL	r	1s
panic: test timed out
skip: p TestB: no TAP: permission denied
tests: 1 passed, 3 failed, 1 skipped
`
	if out.String() != want {
		t.Errorf("got:\n%s\nwant:\n%s", out.String(), want)
	}
	const fails = `fail: p TestA: not equal
fail: q: the package did not build, or ended by itself
fail: r: the package did not build, or ended by itself`
	if got := strings.Join(r.fails, "\n"); got != fails {
		t.Errorf("got:\n%s\nwant:\n%s", got, fails)
	}
}

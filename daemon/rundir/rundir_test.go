package rundir

import (
	"os/exec"
	"testing"
	"time"
)

func start(t *testing.T, args ...string) Process {
	t.Helper()
	c := exec.Command(args[0], args[1:]...)
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() { _ = c.Wait(); close(done) }()
	t.Cleanup(func() { _ = c.Process.Kill(); <-done })
	p, err := Record(c.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestEnd(t *testing.T) {
	p := start(t, "sleep", "60")
	if !p.Alive() {
		t.Fatal("not alive")
	}
	if err := p.End(5 * time.Second); err != nil || p.Alive() {
		t.Fatalf("err %v, alive %v", err, p.Alive())
	}
	if err := p.End(time.Second); err != nil {
		t.Fatalf("a second time: %v", err)
	}
}

func TestEndStubborn(t *testing.T) {
	p := start(t, "sh", "-c", `trap "" TERM; while :; do sleep 0.05; done`)
	time.Sleep(100 * time.Millisecond)
	if err := p.End(200 * time.Millisecond); err != nil || p.Alive() {
		t.Fatalf("err %v, alive %v", err, p.Alive())
	}
}

// A number that now belongs to another process must not be touched.
func TestReusedNumber(t *testing.T) {
	p := start(t, "sleep", "60")
	old := p
	old.Start--
	if old.Alive() {
		t.Error("another start time counts as alive")
	}
	if err := old.End(time.Second); err != nil {
		t.Error(err)
	}
	reboot := p
	reboot.Boot = "another"
	if err := reboot.End(time.Second); err != nil || reboot.Alive() {
		t.Error("a record of another boot counts")
	}
	if !p.Alive() {
		t.Error("the innocent process was ended")
	}
}

func TestEndIf(t *testing.T) {
	p := start(t, "sleep", "60")
	if err := EndIf([]Process{p}, time.Second, func(int) bool { return false }); err != nil || !p.Alive() {
		t.Errorf("err %v, alive %v", err, p.Alive())
	}
}

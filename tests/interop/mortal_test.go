//go:build interop

package interop

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"
)

// What outlives a test process that dies without its cleanups (a panic of -timeout, Ctrl-C, a kill) ends by itself or is swept
// by the next run. Names say whose it was: mrvmPID is the VM's namespace, mr-vmPID-… and mr-iopPID-… are directories of the
// VM and of a lab.

// startMortal starts a program that gets SIGTERM when we die, however we do, and closes ended when it has ended. The kernel
// sends that signal when the thread ends that started the program, so the thread is kept for as long.
func startMortal(cmd *exec.Cmd, ended chan<- struct{}) error {
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM}
	started := make(chan error)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			_ = cmd.Wait() // what it said and left tells why
			close(ended)
		}
	}()
	return <-started
}

func netnsOf(pid int) string { return fmt.Sprintf("mrvm%d", pid) }

// tempDir makes a directory of ours. Its name is short: it holds unix sockets.
func tempDir(kind string) (string, error) {
	return os.MkdirTemp("", fmt.Sprintf("mr-%s%d-", kind, os.Getpid()))
}

var (
	netnsName = regexp.MustCompile(`^mrvm(\d+)$`)
	dirName   = regexp.MustCompile(`^mr-(vm|iop)(\d+)-\d+$`)
)

// gone reports whether no process that runs has a number. A number that somebody else got counts as alive.
func gone(number string) bool {
	stat, err := os.ReadFile(filepath.Join("/proc", number, "stat"))
	if err != nil {
		return errors.Is(err, os.ErrNotExist)
	}
	_, rest, _ := strings.Cut(string(stat), ") ") // behind the name
	return strings.HasPrefix(rest, "Z")           // it waits for its parent to look
}

// sweep removes what dead runs left: labs, directories, namespaces. What cannot be removed stays for the next run.
func sweep() {
	for _, path := range list(os.TempDir(), "mr-iop*") {
		if d := dirName.FindStringSubmatch(filepath.Base(path)); d == nil || !gone(d[2]) {
			continue
		}
		if _, err := os.Stat(filepath.Join(path, "mroce")); err == nil {
			if ok, _ := labIn(path).down(); !ok {
				continue // the state is what a person needs to end it
			}
		}
		os.RemoveAll(path)
	}
	for _, path := range list(os.TempDir(), "mr-vm*") {
		if d := dirName.FindStringSubmatch(filepath.Base(path)); d != nil && gone(d[2]) {
			os.RemoveAll(path)
		}
	}
	for _, path := range list("/run/netns", "mrvm*") {
		if n := netnsName.FindStringSubmatch(filepath.Base(path)); n != nil && gone(n[1]) {
			_ = exec.Command("ip", "netns", "del", n[0]).Run() // another run may sweep as well
		}
	}
}

func list(dir, pattern string) []string {
	all, _ := filepath.Glob(filepath.Join(dir, pattern)) // an error is of the pattern
	return all
}

// TestMortal: a process that dies takes with it what it started, and what it leaves is swept by its number.
func TestMortal(t *testing.T) {
	needMachine(t)
	if os.Getenv("MR_INTEROP_DIE") != "" {
		die(t)
	}
	again := exec.Command(os.Args[0], "-test.run", "^TestMortal$")
	again.Env = append(os.Environ(), "MR_INTEROP_DIE=1")
	out, err := again.StdoutPipe()
	if err == nil {
		err = again.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	var child, dir string
	if _, err := fmt.Fscan(out, &child, &dir); err != nil {
		t.Fatal(err)
	}
	_ = again.Wait() // it kills itself
	for end := time.Now().Add(5 * time.Second); !gone(child); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%s, which the dead process started, still runs", child)
		}
	}
	other, err := tempDir("vm")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(other) })
	sweep()
	for path, stays := range map[string]bool{dir: false, "/run/netns/" + netnsOf(again.Process.Pid): false, other: true} {
		if _, err := os.Stat(path); (err == nil) != stays {
			t.Errorf("%s: %v, should stay: %t", path, err, stays)
		}
	}
}

// die is what TestMortal starts: a run that makes everything, says so, and is killed.
func die(t *testing.T) {
	ns := netnsOf(os.Getpid())
	if out, err := exec.Command("ip", "netns", "add", ns).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	dir, err := tempDir("vm")
	c := exec.Command("ip", "netns", "exec", ns, "timeout", "60", "sleep", "60")
	if err == nil {
		err = startMortal(c, make(chan struct{}))
	}
	if err != nil {
		t.Fatal(err)
	}
	fmt.Println(c.Process.Pid, dir)
	_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
	select {}
}

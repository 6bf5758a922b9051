//go:build live

package live

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// viewRefused is a station where neither mounts nor namespaces are allowed, of root or of an ordinary user, with a NIC.
func viewRefused(t *testing.T, user bool) *lab {
	t.Helper()
	l := station(t)
	if user {
		needRoot(t) // to become one
		l = userStation(t)
	}
	// The program that refuses, where everybody may run it.
	dir := t.TempDir()
	chmodParents(t, dir)
	refuse := filepath.Join(dir, "refuse")
	text, err := os.ReadFile(build(t, "tests/refuse"))
	if err == nil {
		err = os.WriteFile(refuse, text, 0o755)
	}
	if err != nil {
		t.Fatal(err)
	}
	l.prefix = append(l.prefix, refuse, "n")
	l.nic(t)
	return l
}

// TestViewRefused: where neither mounts nor namespaces are allowed, system calls are answered, for root and for others, for
// dynamic and static programs, children and threads.
func TestViewRefused(t *testing.T) {
	needProgram(t, "ibv_devinfo", "ibstat", "ucx_info", "python3")
	for _, user := range []bool{false, true} {
		t.Run(fmt.Sprintf("user=%v", user), func(t *testing.T) {
			l := viewRefused(t, user)
			if out := l.try(10*time.Second, "run", "--view", "user", "--", "true"); !strings.Contains(out, "exit 3") {
				t.Fatalf("namespaces are not refused here:\n%s", out)
			}
			if out := l.nice(t, 20*time.Second, "run", "--view", "seccomp", "--", "sh", "-c", "id -u"); user && strings.TrimSpace(out) != "65534" {
				t.Errorf("user %q", out)
			}
			for _, x := range []struct {
				want    string
				program []string
			}{
				{"mr0\n", []string{"ls", "/sys/class/infiniband"}},
				{"4: ACTIVE\n", []string{"cat", "/sys/class/infiniband/mr0/ports/1/state"}},
				{"uverbs0", []string{"ls", "-l", "/dev/infiniband/"}},
				{"counters", []string{"ls", "-l", "/sys/class/infiniband/mr0/ports/1"}},
				{"PORT_ACTIVE", []string{"ibv_devinfo"}},
				{"State: Active", []string{"ibstat"}},
				{"mr0:1", []string{"ucx_info", "-d"}},
				{"", []string{l.nicemu, "__probe", "view"}}, // a static Go program
				{"/sys/class/infiniband/mr0/device\n", []string{"realpath", "/sys/class/infiniband/mr0/device"}},
				{"/sys/class\n", []string{"realpath", "/sys/class/infiniband/mr0/../.."}},
				{"mr0\n", []string{"sh", "-c", "(cd /sys/class && ls ./infiniband)"}},
				{"yes\n", []string{"sh", "-c", "test -c /dev/infiniband/uverbs0 && test -w /dev/infiniband/uverbs0 && ! test -w /sys/class/infiniband/mr0/fw_ver && echo yes"}},
				{"6\n", []string{"sh", "-c", "find /sys/class/infiniband/mr0 -name 'port_*_packets' -o -name 'port_*_data' -o -name 'sys_image_guid' -o -name node_type | wc -l"}},
				{"No such file", []string{"sh", "-c", "cat /sys/class/infiniband/mr0/ports/1/gids/1 2>&1 || true"}},
				{"denied", []string{"sh", "-c", "(echo 1 >/sys/class/infiniband/mr0/ports/1/gids/0) 2>&1 || true"}},
				{"8000 0\n", []string{"python3", "-c", threads}},
			} {
				if out := l.nice(t, 30*time.Second, append([]string{"run", "--"}, x.program...)...); !strings.Contains(out, x.want) {
					t.Errorf("%q: no %q in\n%s", x.program, x.want, out)
				}
			}
			if out := l.nice(t, 20*time.Second, "doctor", "--json"); !strings.Contains(out, "answered system calls") {
				t.Errorf("doctor does not tell of it:\n%s", out)
			}
		})
	}
}

// threads is a program whose threads read at once.
const threads = `
import os, threading
good = bad = 0
wrong = set()
lock = threading.Lock()
def run():
    global good, bad
    g = b = 0
    for i in range(500):
        for name in ("state", "gids/0"):
            with open("/sys/class/infiniband/mr0/ports/1/" + name) as f:
                text = f.read()
                if text in ("4: ACTIVE\n", "0000:0000:0000:0000:0000:ffff:0a00:0001\n"): g += 1
                else:
                    b += 1
                    wrong.add(name + ": " + repr(text))
    with lock:
        good += g; bad += b
all = [threading.Thread(target=run) for i in range(8)]
[t.start() for t in all]
[t.join() for t in all]
print(good, bad)
if wrong: print(wrong)
`

// TestViewRefusedEnds: the program's exit code, signals, children that outlive it, and a supervisor that is killed.
func TestViewRefusedEnds(t *testing.T) {
	l := viewRefused(t, false)
	for program, want := range map[string]string{"exit 7": "exit 7", "kill -9 $$": "exit 137", "exec no-such-program-here 2>/dev/null": "exit 127"} {
		if out := l.try(10*time.Second, "run", "--", "sh", "-c", program); !strings.HasSuffix(out, want) {
			t.Errorf("%s: want %s, got\n%s", program, want, out)
		}
	}
	// SIGTERM reaches the program.
	j := l.run(t, 20*time.Second, "sh", "-c", "trap 'echo got; exit 3' TERM; echo ready; while :; do sleep 0.05; done")
	eventually(t, 10*time.Second, "the program runs", func() (bool, string) { return strings.Contains(j.out.String(), "ready"), j.out.String() })
	j.cmd.Process.Signal(sigterm)
	<-j.done
	if code := j.cmd.ProcessState.ExitCode(); code != 3 || !strings.Contains(j.out.String(), "got") {
		t.Errorf("SIGTERM: exit %d\n%s", code, j.out.String())
	}
	// A child outlives the program, and the view with it.
	file := filepath.Join(t.TempDir(), "out")
	l.nice(t, 20*time.Second, "run", "--", "sh", "-c", "(sleep 0.5; cat /sys/class/infiniband/mr0/ports/1/state >"+file+".new && mv "+file+".new "+file+") >/dev/null 2>&1 &")
	eventually(t, 10*time.Second, "the child reads the view", func() (bool, string) {
		text, err := os.ReadFile(file)
		return string(text) == "4: ACTIVE\n", fmt.Sprint(string(text), err)
	})
	// `run` is killed: the program ends. The supervisor is killed: the program ends, and run says so.
	for _, who := range []string{"run", "supervisor"} {
		j := l.run(t, 20*time.Second, "sh", "-c", "echo pid $PPID $$; while :; do sleep 0.05; done")
		var supervisor, program int
		eventually(t, 10*time.Second, "the program runs", func() (bool, string) {
			n, _ := fmt.Sscanf(j.out.String(), "pid %d %d", &supervisor, &program)
			return n == 2, j.out.String()
		})
		victim := supervisor
		if who == "run" {
			victim = parentOf(t, supervisor)
		}
		if err := sigkill(victim); err != nil {
			t.Fatal(err)
		}
		<-j.done
		eventually(t, 10*time.Second, "the program ends with "+who, func() (bool, string) {
			return syscall.Kill(program, 0) == syscall.ESRCH, fmt.Sprint(program)
		})
		if who == "supervisor" && (j.cmd.ProcessState.ExitCode() != 1 || !strings.Contains(j.out.String(), "the process that answers")) {
			t.Errorf("exit %d\n%s", j.cmd.ProcessState.ExitCode(), j.out.String())
		}
	}
}

func parentOf(t testing.TB, pid int) int {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		t.Fatal(err)
	}
	f := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))
	n, err := strconv.Atoi(f[1])
	if err != nil {
		t.Fatal(err)
	}
	return n
}

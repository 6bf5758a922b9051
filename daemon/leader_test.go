package daemon

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/metaroce/metaroce/device"
)

// leader is a program whose first thread ends while another lives on.
const leader = `
#include <pthread.h>
#include <stdio.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>
static uint64_t guard = 77;
static char text[16] = "before";
static void *live(void *a) { (void)a; sleep(10); return NULL; }
int main(void) {
    pthread_t t;
    pthread_create(&t, NULL, live, NULL);
    printf("%p %p\n", (void *)&guard, (void *)text);
    fflush(stdout);
    pthread_exit(NULL);
}
`

// TestLeaderExits: when a process's first thread has exited, its memory is still reached, through another thread.
func TestLeaderExits(t *testing.T) {
	dir := t.TempDir()
	src, bin := filepath.Join(dir, "leader.c"), filepath.Join(dir, "leader")
	if err := os.WriteFile(src, []byte(leader), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("cc", "-o", bin, src, "-lpthread").CombinedOutput(); err != nil {
		t.Fatalf("cc: %v\n%s", err, out)
	}
	cmd := exec.Command(bin)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer cmd.Wait()
	defer cmd.Process.Kill()
	var guard, text uint64
	line, _ := bufio.NewReader(out).ReadString('\n')
	if n, _ := fmt.Sscanf(line, "0x%x 0x%x", &guard, &text); n != 2 {
		t.Fatalf("%q", line)
	}
	s, err := openSpace(cmd.Process.Pid, guard, 77)
	if err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(2 * time.Second); time.Now().Before(end); time.Sleep(2 * time.Millisecond) {
		var b [8]byte
		l := []unix.Iovec{{Base: &b[0], Len: 8}}
		if _, e := vmCall(unix.SYS_PROCESS_VM_READV, cmd.Process.Pid, l, []remoteIovec{{guard, 8}}); e == unix.ESRCH {
			break // the first thread is gone
		}
	}
	got := make([]byte, 6)
	if n, err := s.Read([]device.Seg{{Addr: text, Buf: got}}); n != 1 || err != nil || string(got) != "before" {
		t.Errorf("read: %d %v %q", n, err, got)
	}
	if n, err := s.Write([]device.Seg{{Addr: text, Buf: []byte("after ")}}); n != 1 || err != nil {
		t.Errorf("write: %d %v", n, err)
	}
	if s.pid == s.tgid {
		t.Error("the first thread did not end")
	}
	if binary.LittleEndian.Uint64(s.nonce[:]) != 77 {
		t.Error("nonce")
	}
}

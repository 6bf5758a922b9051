package doctor

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/metaroce/metaroce/nicemu/space"
)

// Probe is the other process of a check. It waits until its stdin closes, tries, and prints what came of it as JSON.
func Probe(args []string) error {
	what := strings.Join(args, " ")
	if what == "view" {
		return probeView()
	}
	_, _ = io.Copy(io.Discard, os.Stdin)
	var pid int
	var addr uint64
	var last byte
	if n, _ := fmt.Sscanf(what, "dma:%d:%d:%d", &pid, &addr, &last); n == 3 {
		return json.NewEncoder(os.Stdout).Encode(probeDMA(pid, addr, last))
	}
	return json.NewEncoder(os.Stdout).Encode(probeTAP())
}

func text(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

func probeDMA(pid int, addr uint64, last byte) dmaAnswer {
	want := []byte{'n', 'i', 'c', 'e', 'm', 'u', '!', last}
	var a dmaAnswer
	got := make([]byte, 8)
	_, err := unix.ProcessVMReadv(pid, []unix.Iovec{{Base: &got[0], Len: 8}}, []unix.RemoteIovec{{Base: uintptr(addr), Len: 8}}, 0)
	if err == nil && !bytes.Equal(got, want) {
		err = fmt.Errorf("read other bytes than are there")
	}
	a.VM = text(err)
	clear(got)
	f, err := os.OpenFile(fmt.Sprintf("/proc/%d/mem", pid), os.O_RDWR, 0)
	if err == nil {
		defer f.Close()
		if _, err = f.ReadAt(got, int64(addr)); err == nil && !bytes.Equal(got, want) {
			err = fmt.Errorf("read other bytes than are there")
		}
	}
	a.Mem = text(err)
	return a
}

// probeView looks whether the view is there.
func probeView() error {
	st, err := os.Stat("/dev/infiniband/uverbs0")
	if err == nil && st.Mode()&os.ModeCharDevice == 0 {
		err = fmt.Errorf("/dev/infiniband/uverbs0 is no character device")
	}
	if err == nil {
		_, err = os.ReadFile("/sys/class/infiniband/mr0/ports/1/gids/0")
	}
	if err == nil {
		_, err = os.ReadDir("/sys/class/net/lo/")
	}
	return err
}

func probeTAP() tapAnswer {
	fd, err := space.OpenTAP("doctor0", true)
	if err != nil {
		return tapAnswer{TAP: err.Error()}
	}
	defer unix.Close(fd)
	const csum, uso4, uso6 = 0x01, 0x20, 0x40 // TUN_F_CSUM, TUN_F_USO4, TUN_F_USO6
	return tapAnswer{USO: text(unix.IoctlSetInt(fd, unix.TUNSETOFFLOAD, csum|uso4|uso6))}
}

// addressOf is where the other process finds the secret. A package variable does not move.
func addressOf(b *[8]byte) uint64 { return uint64(uintptr(unsafe.Pointer(b))) }

//go:build dpdk

package dpdkx

/*
#include <net/if.h>
#include <stdio.h>
#include <stdlib.h>

#include <rte_dev.h>
#include <rte_eal.h>
#include <rte_ethdev.h>
#include <rte_lcore.h>
#include <rte_errno.h>
#include <rte_log.h>
#include <rte_version.h>

static int
mr_rte_errno(void)
{
	return rte_errno;
}

static volatile char removed[RTE_MAX_ETHPORTS];

static int
mr_on_removal(uint16_t port, enum rte_eth_event_type what, void *arg, void *ret)
{
	(void)what;
	(void)arg;
	(void)ret;
	if (port < RTE_MAX_ETHPORTS)
		removed[port] = 1;
	return 0;
}

static int
mr_watch(uint16_t port)
{
	removed[port] = 0;
	return rte_eth_dev_callback_register(port, RTE_ETH_EVENT_INTR_RMV, mr_on_removal, NULL);
}

static int
mr_removed(uint16_t port)
{
	return removed[port];
}

// The speed in Mbit/s, 0 where it is unknown; -1: down.
static int64_t
mr_link(uint16_t port)
{
	struct rte_eth_link l = {0};

	if (rte_eth_link_get_nowait(port, &l) != 0)
		return -1;
	if (l.link_status != RTE_ETH_LINK_UP)
		return -1;
	return l.link_speed == RTE_ETH_SPEED_NUM_UNKNOWN ? 0 : l.link_speed;
}
*/
import "C"

import (
	"fmt"
	"os"
	"runtime"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/yerden/go-dpdk/ethdev"
)

// Link is a port's link.
type Link struct {
	Up  bool
	Bps uint64 // 0 = unknown
}

// LinkOf asks without waiting.
func LinkOf(p ethdev.Port) Link {
	mbps := int64(C.mr_link(C.uint16_t(p)))
	return Link{Up: mbps >= 0, Bps: uint64(max(mbps, 0)) * 1e6}
}

// Offloads of a port that are used here.
type Offloads struct {
	TxIPv4Checksum, RxIPv4Checksum bool
}

// OffloadsOf asks the driver.
func OffloadsOf(info *ethdev.DevInfo) Offloads {
	i := (*C.struct_rte_eth_dev_info)(unsafe.Pointer(info))
	return Offloads{
		TxIPv4Checksum: i.tx_offload_capa&C.RTE_ETH_TX_OFFLOAD_IPV4_CKSUM != 0,
		RxIPv4Checksum: i.rx_offload_capa&C.RTE_ETH_RX_OFFLOAD_IPV4_CKSUM != 0,
	}
}

// Tx are the flags for ethdev.TxMode.
func (o Offloads) Tx() (flags uint64) {
	if o.TxIPv4Checksum {
		flags |= C.RTE_ETH_TX_OFFLOAD_IPV4_CKSUM
	}
	return flags
}

// Rx are the flags for ethdev.RxMode.
func (o Offloads) Rx() (flags uint64) {
	if o.RxIPv4Checksum {
		flags |= C.RTE_ETH_RX_OFFLOAD_IPV4_CKSUM
	}
	return flags
}

// Descriptors fits numbers of descriptors into what the driver takes.
func Descriptors(info *ethdev.DevInfo, rx, tx uint16) (uint16, uint16) {
	i := (*C.struct_rte_eth_dev_info)(unsafe.Pointer(info))
	fit := func(n uint16, l *C.struct_rte_eth_desc_lim) uint16 {
		if m := uint16(l.nb_max); m > 0 {
			n = min(n, m)
		}
		n = max(n, uint16(l.nb_min))
		if a := uint16(l.nb_align); a > 1 {
			n -= n % a
		}
		return n
	}
	return fit(rx, &i.rx_desc_lim), fit(tx, &i.tx_desc_lim)
}

// Interface is the kernel's interface that the port is made of, or "".
func Interface(info *ethdev.DevInfo) string {
	i := (*C.struct_rte_eth_dev_info)(unsafe.Pointer(info))
	var name [C.IF_NAMESIZE]C.char
	if i.if_index == 0 || C.if_indextoname(i.if_index, &name[0]) == nil {
		return ""
	}
	return C.GoString(&name[0])
}

// IfIndex is the index of the kernel's interface that the port has to do with; 0 = none.
func IfIndex(info *ethdev.DevInfo) uint32 {
	return uint32((*C.struct_rte_eth_dev_info)(unsafe.Pointer(info)).if_index)
}

// Counts are a port's own counters.
type Counts struct {
	RxPackets, RxBytes, TxPackets, TxBytes   uint64
	RxMissed, RxErrors, TxErrors, RxNoBuffer uint64
}

// CountsOf asks the driver.
func CountsOf(p ethdev.Port) (c Counts) {
	var s C.struct_rte_eth_stats
	if C.rte_eth_stats_get(C.uint16_t(p), &s) != 0 {
		return c
	}
	return Counts{
		uint64(s.ipackets), uint64(s.ibytes), uint64(s.opackets), uint64(s.obytes),
		uint64(s.imissed), uint64(s.ierrors), uint64(s.oerrors), uint64(s.rx_nombuf),
	}
}

// Watch notes when the port's device is taken away; Removed asks.
func Watch(p ethdev.Port) error {
	if rc := C.mr_watch(C.uint16_t(p)); rc != 0 {
		return fmt.Errorf("port %d: events: %w", p, syscall.Errno(-rc))
	}
	return nil
}

// Removed reports whether the device of a watched port is gone.
func Removed(p ethdev.Port) bool { return C.mr_removed(C.uint16_t(p)) != 0 }

// AllMulticast lets the port receive all groups. Drivers that filter nothing refuse, and need not be asked.
func AllMulticast(p ethdev.Port) error {
	if rc := C.rte_eth_allmulticast_enable(C.uint16_t(p)); rc != 0 {
		return fmt.Errorf("port %d: all multicast: %w", p, syscall.Errno(-rc))
	}
	return nil
}

// Attach makes a device: a vdev such as net_memif0,role=client, or a PCI address.
func Attach(devargs string) error {
	d := C.CString(devargs)
	defer C.free(unsafe.Pointer(d))
	if rc := C.rte_dev_probe(d); rc != 0 {
		return syscall.Errno(-rc)
	}
	return nil
}

// BindThread makes the calling thread one that DPDK knows, so that pools keep a cache for it, and binds it to a core (-1:
// leaves it as it is). The caller has locked the goroutine to its thread.
func BindThread(core int) error {
	if core >= 0 {
		var set unix.CPUSet
		set.Set(core)
		if err := unix.SchedSetaffinity(0, &set); err != nil {
			return fmt.Errorf("core %d: %w", core, err)
		}
	}
	if C.rte_thread_register() != 0 {
		return fmt.Errorf("thread: %w", syscall.Errno(C.mr_rte_errno()))
	}
	return nil
}

// Heard is what DPDK says while f runs. It is still its log's: to says where that is.
func Heard(to *os.File, f func() error) (said string, err error) {
	fd, err := unix.MemfdCreate("dpdk-log", unix.MFD_CLOEXEC)
	if err != nil {
		return "", f()
	}
	log := os.NewFile(uintptr(fd), "dpdk-log")
	defer log.Close()
	if LogInto(log) != nil {
		return "", f()
	}
	err = f()
	FlushC()
	if e := LogInto(to); e != nil && err == nil {
		err = e
	}
	text := make([]byte, 1<<16)
	n, _ := log.ReadAt(text, 0) // io.EOF, with what there is
	_, _ = to.Write(text[:n])
	return string(text[:n]), err
}

// Levels of logs.
const (
	LogNothing = C.RTE_LOG_EMERG
	LogUsual   = C.RTE_LOG_NOTICE
)

// LogLevel sets how important what the logs of a pattern say must be to be said.
func LogLevel(pattern string, level uint) {
	p := C.CString(pattern)
	defer C.free(unsafe.Pointer(p))
	C.rte_log_set_level_pattern(p, C.uint32_t(level)) // fails for patterns that match nothing
}

// FlushC writes out what C has printed so far.
func FlushC() { C.fflush(nil) }

// RuntimeDir is where the environment keeps its files.
func RuntimeDir() string { return C.GoString(C.rte_eal_get_runtime_dir()) }

// Version of the library that is loaded.
func Version() string { return C.GoString(C.rte_version()) }

// LogInto lets DPDK write what it says into f instead of stderr.
func LogInto(f *os.File) error {
	mode := C.CString("a")
	defer C.free(unsafe.Pointer(mode))
	fd, err := unix.Dup(int(f.Fd()))
	if err != nil {
		return err
	}
	stream := C.fdopen(C.int(fd), mode)
	if stream == nil {
		return fmt.Errorf("cannot open a stream on %s", f.Name())
	}
	C.setlinebuf(stream)
	if C.rte_openlog_stream(stream) != 0 {
		return fmt.Errorf("DPDK keeps its own log")
	}
	runtime.KeepAlive(f)
	return nil
}

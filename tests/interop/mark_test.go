//go:build interop

package interop

import (
	"encoding/binary"
	"net"
	"runtime"

	"golang.org/x/sys/unix"
)

// mark is the payload of the last packet of a capture. Nobody receives it: its Ethernet address is nobody's.
const (
	mark     = "metaroce-interop: end of the capture"
	markPort = 9 // it comes from
)

// sendMark sends the mark out of vm0.
func sendMark(netns string) error {
	errs := make(chan error)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends with the goroutine, in the namespace
		errs <- sendMarkHere(netns)
	}()
	return <-errs
}

func sendMarkHere(netns string) error {
	ns, err := unix.Open("/run/netns/"+netns, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(ns)
	if err := unix.Setns(ns, unix.CLONE_NEWNET); err != nil {
		return err
	}
	vm0, err := net.InterfaceByName("vm0")
	if err != nil {
		return err
	}
	s, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(s)
	return unix.Sendto(s, markFrame(), 0, &unix.SockaddrLinklayer{Ifindex: vm0.Index})
}

// markFrame is an Ethernet frame with a UDP datagram over IPv4, without addresses and checksums.
func markFrame() []byte {
	b := []byte{2, 0, 0, 0, 0, 0xe, 2, 0, 0, 0, 0, 0xd, 8, 0}
	b = append(b, 0x45, 0)
	b = binary.BigEndian.AppendUint16(b, uint16(20+8+len(mark)))
	b = append(b, 0, 0, 0x40, 0, 64, unix.IPPROTO_UDP, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)
	for _, v := range []int{markPort, rocePort, 8 + len(mark), 0} {
		b = binary.BigEndian.AppendUint16(b, uint16(v))
	}
	return append(b, mark...)
}

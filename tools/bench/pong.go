package main

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/metaroce/metaroce/tools/bed"
)

const (
	pongRounds = 20000
	pongWarm   = 1000
)

// tcpPong sends 8 bytes to and fro and prints half round trips. It uses blocking system calls, as a C program would: the
// Go network poller adds tens of microseconds that are not TCP's.
func tcpPong(at string) error {
	if strings.HasPrefix(at, ":") {
		return pongServer(at)
	}
	fd, err := connect(at)
	if err != nil {
		return fmt.Errorf("connect to %s: %w", at, err)
	}
	defer syscall.Close(fd)
	var buf [8]byte
	times := make([]float64, 0, pongRounds)
	for i := range pongRounds + pongWarm {
		start := time.Now()
		if _, err := syscall.Write(fd, buf[:]); err != nil {
			return err
		}
		if err := readFull(fd, buf[:]); err != nil {
			return err
		}
		if i >= pongWarm {
			times = append(times, time.Since(start).Seconds()/2)
		}
	}
	slices.Sort(times)
	return json.NewEncoder(os.Stdout).Encode(Latency{times[len(times)/2], times[len(times)*99/100]})
}

func pongServer(at string) error {
	addr, err := sockaddr("0.0.0.0" + at)
	if err != nil {
		return err
	}
	l, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM, 0)
	if err != nil {
		return err
	}
	defer syscall.Close(l)
	if err := syscall.SetsockoptInt(l, syscall.SOL_SOCKET, syscall.SO_REUSEADDR, 1); err != nil {
		return err
	}
	if err := syscall.Bind(l, addr); err != nil {
		return err
	}
	if err := syscall.Listen(l, 1); err != nil {
		return err
	}
	fd, _, err := syscall.Accept(l)
	if err != nil {
		return err
	}
	defer syscall.Close(fd)
	if err := noDelay(fd); err != nil {
		return err
	}
	var buf [8]byte
	for range pongRounds + pongWarm {
		if err := readFull(fd, buf[:]); err != nil {
			return err
		}
		if _, err := syscall.Write(fd, buf[:]); err != nil {
			return err
		}
	}
	return nil
}

func connect(at string) (int, error) {
	addr, err := sockaddr(at)
	if err != nil {
		return -1, err
	}
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM, 0)
	if err != nil {
		return -1, err
	}
	if err := syscall.Connect(fd, addr); err != nil {
		syscall.Close(fd)
		return -1, err
	}
	return fd, noDelay(fd)
}

func noDelay(fd int) error {
	return syscall.SetsockoptInt(fd, syscall.IPPROTO_TCP, syscall.TCP_NODELAY, 1)
}

func sockaddr(at string) (*syscall.SockaddrInet4, error) {
	var a syscall.SockaddrInet4
	_, err := fmt.Sscanf(at, "%d.%d.%d.%d:%d", &a.Addr[0], &a.Addr[1], &a.Addr[2], &a.Addr[3], &a.Port)
	return &a, err
}

func readFull(fd int, buf []byte) error {
	for n := 0; n < len(buf); {
		m, err := syscall.Read(fd, buf[n:])
		if err != nil {
			return err
		}
		if m == 0 {
			return fmt.Errorf("the peer hung up")
		}
		n += m
	}
	return nil
}

// pong runs this program's own TCP ping-pong in the hosts.
func pong(b *bed.Bed) (Latency, error) {
	self, err := os.Executable()
	if err != nil {
		return Latency{}, err
	}
	port := b.NextPort()
	at := fmt.Sprintf("%s:%d", bed.VethA, port)
	out, err := b.Pair(60*time.Second, []string{self, "-pong", fmt.Sprintf(":%d", port)}, []string{self, "-pong", at})
	if err != nil {
		return Latency{}, err
	}
	var l Latency
	return l, json.NewDecoder(strings.NewReader(out)).Decode(&l)
}

//go:build dpdk

// Package ethdev is DPDK's Ethernet ports.
package ethdev

/*
#cgo pkg-config: libdpdk
#include <stdlib.h>

#include <rte_ethdev.h>

static uint16_t
mr_rx_burst(uint16_t port, uint16_t q, struct rte_mbuf **ms, uint16_t n)
{
	return rte_eth_rx_burst(port, q, ms, n);
}

static uint16_t
mr_tx_burst(uint16_t port, uint16_t q, struct rte_mbuf **ms, uint16_t n)
{
	return rte_eth_tx_burst(port, q, ms, n);
}
*/
import "C"

import (
	"fmt"
	"net"
	"syscall"
	"unsafe"

	"github.com/yerden/go-dpdk/mbuf"
	"github.com/yerden/go-dpdk/mempool"
)

// Port is the number of a port.
type Port uint16

func (pid Port) c() C.uint16_t { return C.uint16_t(pid) }

// check makes an error of what DPDK returned.
func (pid Port) check(what string, rc C.int) error {
	if rc >= 0 {
		return nil
	}
	return fmt.Errorf("port %d: %s: %w", pid, what, syscall.Errno(-rc))
}

// ValidPorts are the ports that there are.
func ValidPorts() []Port {
	var all []Port
	for p := Port(0); p < C.RTE_MAX_ETHPORTS; p++ {
		if p.IsValid() {
			all = append(all, p)
		}
	}
	return all
}

// IsValid reports whether the port is there.
func (pid Port) IsValid() bool { return C.rte_eth_dev_is_valid_port(pid.c()) != 0 }

// GetPortByName finds the port of a device.
func GetPortByName(name string) (Port, error) {
	cname := C.CString(name)
	defer C.free(unsafe.Pointer(cname))
	var id C.uint16_t
	if rc := C.rte_eth_dev_get_port_by_name(cname, &id); rc != 0 {
		return 0, fmt.Errorf("port %s: %w", name, syscall.Errno(-rc))
	}
	return Port(id), nil
}

// Name is the device's.
func (pid Port) Name() (string, error) {
	var buf [C.RTE_ETH_NAME_MAX_LEN]C.char
	if err := pid.check("name", C.rte_eth_dev_get_name_by_port(pid.c(), &buf[0])); err != nil {
		return "", err
	}
	return C.GoString(&buf[0]), nil
}

// RxMode is how a port receives.
type RxMode struct {
	MqMode   uint
	MTU      uint32
	Offloads uint64
}

// TxMode is how a port sends.
type TxMode struct {
	MqMode   uint
	Offloads uint64
}

// RssConf spreads received packets over queues. A nil Key leaves the port's own.
type RssConf struct {
	Key []byte
	Hf  uint64
}

type ethConf struct {
	conf C.struct_rte_eth_conf
	key  unsafe.Pointer
}

// Option changes a port's configuration.
type Option struct{ set func(*ethConf) }

// OptRxMode is how the port receives.
func OptRxMode(m RxMode) Option {
	return Option{func(c *ethConf) {
		c.conf.rxmode.mq_mode = uint32(m.MqMode)
		c.conf.rxmode.mtu = C.uint32_t(m.MTU)
		c.conf.rxmode.offloads = C.uint64_t(m.Offloads)
	}}
}

// OptTxMode is how the port sends.
func OptTxMode(m TxMode) Option {
	return Option{func(c *ethConf) {
		c.conf.txmode.mq_mode = uint32(m.MqMode)
		c.conf.txmode.offloads = C.uint64_t(m.Offloads)
	}}
}

// OptRss spreads what is received over the queues.
func OptRss(r RssConf) Option {
	return Option{func(c *ethConf) {
		rss := &c.conf.rx_adv_conf.rss_conf
		rss.rss_hf = C.uint64_t(r.Hf)
		if len(r.Key) > 0 {
			c.key = C.CBytes(r.Key)
			rss.rss_key, rss.rss_key_len = (*C.uint8_t)(c.key), C.uint8_t(len(r.Key))
		}
	}}
}

// DevConfigure sets the numbers of queues, and how they work.
func (pid Port) DevConfigure(nrxq, ntxq uint16, opts ...Option) error {
	var c ethConf
	for _, o := range opts {
		o.set(&c)
	}
	defer C.free(c.key)
	return pid.check("configure", C.rte_eth_dev_configure(pid.c(), C.uint16_t(nrxq), C.uint16_t(ntxq), &c.conf))
}

// QueueOption changes a queue.
type QueueOption struct{ set func(*queueConf) }

type queueConf struct{ socket C.uint }

// OptSocket is the NUMA node of the queue's memory.
func OptSocket(socket int) QueueOption {
	return QueueOption{func(q *queueConf) { q.socket = C.uint(socket) }}
}

func queue(opts []QueueOption) queueConf {
	anySocket := C.int(C.SOCKET_ID_ANY)
	q := queueConf{socket: C.uint(anySocket)}
	for _, o := range opts {
		o.set(&q)
	}
	return q
}

// RxqSetup makes a queue that receives into buffers of a pool.
func (pid Port) RxqSetup(qid, nDesc uint16, mp *mempool.Mempool, opts ...QueueOption) error {
	q := queue(opts)
	return pid.check("receive queue", C.rte_eth_rx_queue_setup(pid.c(), C.uint16_t(qid), C.uint16_t(nDesc), q.socket, nil, (*C.struct_rte_mempool)(unsafe.Pointer(mp))))
}

// TxqSetup makes a queue that sends.
func (pid Port) TxqSetup(qid, nDesc uint16, opts ...QueueOption) error {
	q := queue(opts)
	return pid.check("transmit queue", C.rte_eth_tx_queue_setup(pid.c(), C.uint16_t(qid), C.uint16_t(nDesc), q.socket, nil))
}

// Start starts the port.
func (pid Port) Start() error { return pid.check("start", C.rte_eth_dev_start(pid.c())) }

// Stop stops it.
func (pid Port) Stop() { C.rte_eth_dev_stop(pid.c()) }

// Close frees what it has; the port is gone then.
func (pid Port) Close() { C.rte_eth_dev_close(pid.c()) }

// PromiscEnable lets the port receive everything.
func (pid Port) PromiscEnable() error {
	return pid.check("promiscuous", C.rte_eth_promiscuous_enable(pid.c()))
}

// SetMTU changes the MTU.
func (pid Port) SetMTU(mtu uint16) error {
	return pid.check("MTU", C.rte_eth_dev_set_mtu(pid.c(), C.uint16_t(mtu)))
}

// GetMTU is the MTU.
func (pid Port) GetMTU() (uint16, error) {
	var mtu C.uint16_t
	err := pid.check("MTU", C.rte_eth_dev_get_mtu(pid.c(), &mtu))
	return uint16(mtu), err
}

// SocketID is the NUMA node of the device, or -1.
func (pid Port) SocketID() int { return int(C.rte_eth_dev_socket_id(pid.c())) }

// MACAddr is an Ethernet address.
type MACAddr C.struct_rte_ether_addr

// MACAddrGet reads the port's address.
func (pid Port) MACAddrGet(addr *MACAddr) error {
	return pid.check("MAC", C.rte_eth_macaddr_get(pid.c(), (*C.struct_rte_ether_addr)(addr)))
}

// HardwareAddr is the address as package net has it.
func (addr *MACAddr) HardwareAddr() net.HardwareAddr {
	b := (*[6]byte)(unsafe.Pointer(addr))
	return append(net.HardwareAddr(nil), b[:]...)
}

// DevInfo is what a driver says about its port.
type DevInfo C.struct_rte_eth_dev_info

// InfoGet asks the driver.
func (pid Port) InfoGet(info *DevInfo) error {
	return pid.check("info", C.rte_eth_dev_info_get(pid.c(), (*C.struct_rte_eth_dev_info)(info)))
}

// DriverName is net_memif, net_tap …
func (info *DevInfo) DriverName() string { return C.GoString(info.driver_name) }

// MinMTU is the smallest MTU.
func (info *DevInfo) MinMTU() uint16 { return uint16(info.min_mtu) }

// MaxMTU is the largest MTU.
func (info *DevInfo) MaxMTU() uint16 { return uint16(info.max_mtu) }

// MaxRxPktLen is the longest frame.
func (info *DevInfo) MaxRxPktLen() uint32 { return uint32(info.max_rx_pktlen) }

// RxBurst receives up to len(pkts) packets.
func (pid Port) RxBurst(qid uint16, pkts []*mbuf.Mbuf) uint16 {
	if len(pkts) == 0 {
		return 0
	}
	return uint16(C.mr_rx_burst(pid.c(), C.uint16_t(qid), (**C.struct_rte_mbuf)(unsafe.Pointer(&pkts[0])), C.uint16_t(len(pkts))))
}

// TxBurst sends; those sent belong to the port.
func (pid Port) TxBurst(qid uint16, pkts []*mbuf.Mbuf) uint16 {
	if len(pkts) == 0 {
		return 0
	}
	return uint16(C.mr_tx_burst(pid.c(), C.uint16_t(qid), (**C.struct_rte_mbuf)(unsafe.Pointer(&pkts[0])), C.uint16_t(len(pkts))))
}

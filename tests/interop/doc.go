// Package interop lets a NIC of nicemu talk to a RoCEv2 peer that nobody here wrote: soft-RoCE (rdma_rxe) of Debian's
// kernel, in a QEMU machine without hardware acceleration. It proves that both understand each other, not speed.
//
// The way of a packet between them:
//
//	program ─ NIC a/mr0 ─ impairment ─ TAP ─ bridge plane0 ─ veth ─ bridge br0 ─ TAP vm0 ─ virtio-net ─ rxe0 ─ program
//	          └──── lab's namespaces ─────────────────────┘    └─ test's namespace ─┘   └──────── VM ────────┘
//
// The VM is booted once for all tests; labs come and go beside it. vm0 is where captures are made: they show what the VM
// really sent and was sent. vm.sh makes the VM's kernel and file system in build/interop.
package interop

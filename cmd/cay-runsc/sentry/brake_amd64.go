package main

import "golang.org/x/sys/unix"

// forkCalls are the system calls that make a task.
var forkCalls = []uintptr{unix.SYS_CLONE, unix.SYS_CLONE3, unix.SYS_FORK, unix.SYS_VFORK}

package server

import (
	"net"
	"strconv"
	"testing"

	"github.com/cay-run/cay"
)

// Names below localhost lead to ::1 and to 127.0.0.1, so the port of both is
// the server's, whichever one its address names.
func TestBothFamiliesOfThisMachine(t *testing.T) {
	for _, address := range []string{"127.0.0.1:0", "[::1]:0", "localhost:0"} {
		faces, err := listenHere(t.Context(), address)
		if err != nil {
			t.Fatal(err)
		}
		if len(faces) != 2 {
			t.Fatalf("%s: %d listeners", address, len(faces))
		}
		port := strconv.Itoa(faces[0].Addr().(*net.TCPAddr).Port)
		for _, host := range []string{"127.0.0.1", "::1"} {
			c, err := net.Dial("tcp", net.JoinHostPort(host, port))
			if err != nil {
				t.Errorf("%s: %v", address, err)
				continue
			}
			c.Close()
		}
		for _, l := range faces {
			l.Close()
		}
	}
	for _, address := range []string{"127.0.0.2:0", "0.0.0.0:0", "[::]:0"} {
		faces, err := listenHere(t.Context(), address)
		if err != nil || len(faces) != 1 {
			t.Errorf("%s: %d listeners, %v", address, len(faces), err)
			continue
		}
		faces[0].Close()
	}
}

// Another program at ::1 would get what is meant for the server.
func TestAnotherProgramInTheOtherFamily(t *testing.T) {
	taken, err := net.Listen("tcp", "[::1]:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	address := net.JoinHostPort("127.0.0.1", strconv.Itoa(taken.Addr().(*net.TCPAddr).Port))
	if faces, err := listenHere(t.Context(), address); cay.KindOf(err) != cay.Conflict {
		t.Fatalf("%d listeners, %v", len(faces), err)
	}
	free, err := net.Listen("tcp", address) // the first listener is closed
	if err != nil {
		t.Fatal(err)
	}
	free.Close()
}

package guest

import (
	"net/url"
	"strings"
	"testing"
	"time"
)

func TestFileOperation(t *testing.T) {
	for _, c := range []struct{ method, path, want string }{
		{"GET", FilesPath, "read"},
		{"HEAD", FilesPath, "read"},
		{"POST", FilesPath, "write"},
		{"PUT", FilesPath, ""},
		{"DELETE", FilesPath, ""},
		{"GET", TarPath, "read-tar"},
		{"HEAD", TarPath, "read-tar"},
		{"POST", TarPath, "write-tar"},
		{"PUT", TarPath, "write-tar"},
		{"POST", ComposePath, ""},
		{"GET", "/files/", ""},
		{"POST", "/process.Process/Start", ""},
	} {
		if got := FileOperation(c.method, c.path); got != c.want {
			t.Errorf("%s %s: %q, want %q", c.method, c.path, got, c.want)
		}
	}
}

// E2B publishes this vector.
func TestPublishedSignature(t *testing.T) {
	const want = "v1_gUtH/s9YCJWgCizjfUxuWfhFE4QSydOWEIIvfLwDr6E"
	s := Signature{Path: "hello.txt", User: "user"}
	if got := s.Sign("read", "0tQG31xiMp0IOQfaz9dcwi72L1CPo8e0"); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

func TestSignature(t *testing.T) {
	q, err := url.ParseQuery("path=hello.txt&username=user&signature=v1_gUtH/s9YCJWgCizjfUxuWfhFE4QSydOWEIIvfLwDr6E")
	if err != nil {
		t.Fatal(err)
	}
	s := SignatureOf(q)
	if !s.Plausible() {
		t.Error("a real signature is not plausible")
	}
	s.Value = s.Sign("read", "token")
	if !s.Plausible() || !s.IsBy("read", "token") || s.IsBy("write", "token") || s.IsBy("read", "other") {
		t.Errorf("%+v does not tell tokens or operations apart", s)
	}
	dated := Signature{Path: "x", Expiry: "100"}
	dated.Value = dated.Sign("read", "token")
	if undated := (Signature{Path: "x", Value: dated.Value}); undated.IsBy("read", "token") {
		t.Error("the expiration can be left out")
	}
	for expiry, over := range map[string]bool{"": false, "99": true, "100": false, "101": false, "x": true, "99999999999999999999": true} {
		if got := (Signature{Expiry: expiry}).Expired(time.Unix(100, 0)); got != over {
			t.Errorf("expiration %q at 100: over %v, want %v", expiry, got, over)
		}
	}
	for _, value := range []string{"", "x", "v1_", "v1_x", "v2_" + s.Value[3:], s.Value + "A", s.Value[:len(s.Value)-1]} {
		if (Signature{Value: value}).Plausible() {
			t.Errorf("%q is plausible", value)
		}
	}
	if (Signature{Value: s.Value, Path: strings.Repeat("x", maxSigned+1)}).Plausible() {
		t.Error("a path of any length is plausible")
	}
}

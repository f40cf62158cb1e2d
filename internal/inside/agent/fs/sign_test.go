package fs

import (
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/cay-run/cay/internal/guest"
)

const testToken = "0tQG31xiMp0IOQfaz9dcwi72L1CPo8e0"

const (
	opRead    = "read"
	opWrite   = "write"
	opReadTar = "read-tar"
)

func sign(path, op, account, token, expiry string) string {
	return guest.Signature{Path: path, User: account, Expiry: expiry}.Sign(op, token)
}

func TestSignedRequests(t *testing.T) {
	w := newWorld(t)
	w.token = testToken
	w.write("hello.txt", "hello")
	in, past := fmt.Sprint(time.Now().Add(time.Hour).Unix()), "1000"
	q := func(path, username, signature, expiry string) string {
		v := url.Values{}
		for k, s := range map[string]string{"path": path, "username": username, "signature": signature, "signature_expiration": expiry} {
			if s != "" {
				v.Set(k, s)
			}
		}
		return "/files?" + v.Encode()
	}
	for name, c := range map[string]struct {
		target string
		status int
		text   string
	}{
		"good":              {q("hello.txt", "user", sign("hello.txt", opRead, "user", testToken, ""), ""), 200, "hello"},
		"no user":           {q("hello.txt", "", sign("hello.txt", opRead, "", testToken, ""), ""), 200, "hello"},
		"in time":           {q("hello.txt", "", sign("hello.txt", opRead, "", testToken, in), in), 200, "hello"},
		"missing":           {q("hello.txt", "", "", ""), 401, `{"code":401,"message":"missing signature query parameter"}`},
		"wrong":             {q("hello.txt", "", "v1_nonsense", ""), 401, `{"code":401,"message":"invalid signature"}`},
		"for a write":       {q("hello.txt", "", sign("hello.txt", opWrite, "", testToken, ""), ""), 401, `"invalid signature"`},
		"other path":        {q("other", "", sign("hello.txt", opRead, "", testToken, ""), ""), 401, `"invalid signature"`},
		"other user":        {q("hello.txt", "other", sign("hello.txt", opRead, "", testToken, ""), ""), 401, `"invalid signature"`},
		"expired":           {q("hello.txt", "", sign("hello.txt", opRead, "", testToken, past), past), 401, `{"code":401,"message":"signature is already expired"}`},
		"expired and wrong": {q("hello.txt", "", "v1_x", past), 401, `"invalid signature"`},
		"expiry left out":   {q("hello.txt", "", sign("hello.txt", opRead, "", testToken, in), ""), 401, `"invalid signature"`},
		"expiry not a time": {q("hello.txt", "", sign("hello.txt", opRead, "", testToken, "x"), "x"), 401, `"signature is already expired"`},
	} {
		t.Run(name, func(t *testing.T) { w.do("GET", c.target, nil).check(t, c.status, c.text) })
	}
	w.do("GET", files("hello.txt"), nil, "X-Access-Token", testToken).check(t, 200, "hello")
	w.do("GET", files("hello.txt"), nil, "X-Access-Token", "wrong").check(t, 401, "does not match")

	up := "/files?path=up&signature=" + url.QueryEscape(sign("up", opWrite, "", testToken, ""))
	w.do("POST", up, strings.NewReader("x"), "Content-Type", octets).check(t, 200, "up")
	// A signed upload without a path takes the names of its parts.
	body, kind := form(t, `name="file"; filename="named"`, "x")
	w.do("POST", "/files?signature="+url.QueryEscape(sign("", opWrite, "", testToken, "")), body, "Content-Type", kind).check(t, 200, "named")
	// No signature allows to compose, and one for a file allows no tar.
	w.do("POST", "/files/compose?signature="+url.QueryEscape(sign("", opWrite, "", testToken, "")), strings.NewReader("{}")).check(t, 401, "access token")
	w.do("GET", "/files/tar?path=hello.txt&signature="+url.QueryEscape(sign("hello.txt", opRead, "", testToken, "")), nil).check(t, 401, "invalid signature")
	w.do("GET", "/files/tar?path=hello.txt&signature="+url.QueryEscape(sign("hello.txt", opReadTar, "", testToken, "")), nil).check(t, 200, "hello")
	w.do("PUT", "/files/tar?path=d&signature="+url.QueryEscape(sign("d", opReadTar, "", testToken, "")), strings.NewReader("")).check(t, 401, "invalid signature")
	w.do("PUT", "/files/tar?path=d&signature="+url.QueryEscape(sign("d", "write-tar", "", testToken, "")), strings.NewReader("no tar")).check(t, 400, "")
}

func TestOwnAuth(t *testing.T) {
	for path, want := range map[string]bool{"/files": true, "/files/tar": true, "/files/compose": true, "/files/": false, "/filesystem.Filesystem/Stat": false} {
		if OwnAuth(path) != want {
			t.Error(path)
		}
	}
}

func FuzzAuthorize(f *testing.F) {
	f.Add("path=hello.txt&signature=v1_x&signature_expiration=1")
	f.Add("path=%00&username=&signature=" + url.QueryEscape(sign("\x00", opRead, "", testToken, "")))
	f.Fuzz(func(t *testing.T, raw string) {
		q, err := url.ParseQuery(raw)
		if err != nil {
			return
		}
		now := time.Unix(1_000_000_000, 0)
		err = authorize(http.Header{}, q, opRead, testToken, now)
		want := sign(q.Get("path"), opRead, q.Get("username"), testToken, q.Get("signature_expiration"))
		if err == nil && q.Get("signature") != want {
			t.Errorf("%q was let in", raw)
		}
	})
}

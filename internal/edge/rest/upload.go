package rest

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/cay-run/cay/api/rest/e2b"

	"github.com/go-chi/chi/v5"

	"github.com/cay-run/cay"
)

// An upload's link carries its own permission: clients send the archive
// without a key.
const (
	uploadRoute = "/templates/{id}/files/{hash}"
	uploadLife  = 2 * time.Hour // clients allow themselves one for the archive
	uploadMost  = 16 << 30      // bytes
)

// isUpload reports whether a request sends an archive, whose size is bounded
// by itself.
func isUpload(r *http.Request) bool {
	return r.Method == http.MethodPut && strings.HasPrefix(r.URL.Path, "/templates/")
}

// GetUploadLink says where to send the archive of a COPY.
func (s *server) GetUploadLink(ctx context.Context, r e2b.GetUploadLinkRequestObject) (e2b.GetUploadLinkResponseObject, error) {
	if s.links == nil {
		return nil, cay.Errorf(cay.Unsupported, "this server takes no archives")
	}
	who := callerOf(ctx)
	team := who.Team
	present, err := s.builds.Uploaded(ctx, who, r.TemplateID, r.Hash)
	if err != nil {
		return nil, err
	}
	expires := strconv.FormatInt(time.Now().Add(uploadLife).Unix(), 10)
	origin, _ := ctx.Value(originKey{}).(string)
	link := origin + "/templates/" + url.PathEscape(r.TemplateID) + "/files/" + r.Hash + "?" + url.Values{
		"team": {string(team)}, "expires": {expires},
		"signature": {s.links.Sign(uploadText(string(team), r.Hash, expires))},
	}.Encode()
	return e2b.GetUploadLink201JSONResponse{Present: present, URL: link}, nil
}

func uploadText(team, hash, expires string) string {
	return "upload " + team + " " + hash + " " + expires
}

// upload takes an archive by a link of GetUploadLink.
func (s *server) upload(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	team, hash, expires := q.Get("team"), chi.URLParam(r, "hash"), q.Get("expires")
	until, err := strconv.ParseInt(expires, 10, 64)
	switch {
	case err != nil || !s.links.CheckSign(uploadText(team, hash, expires), q.Get("signature")):
		s.fail(w, r, cay.Errorf(cay.Denied, "the link's signature is wrong"))
		return
	case time.Now().Unix() > until:
		s.fail(w, r, cay.Errorf(cay.Denied, "the link's time is over").WithHint("ask for a new one"))
		return
	}
	body := http.MaxBytesReader(w, r.Body, uploadMost)
	err = s.builds.Upload(r.Context(), cay.ForTeam(cay.TeamID(team)), hash, body, r.ContentLength)
	var large *http.MaxBytesError
	if errors.As(err, &large) {
		err = cay.Errorf(cay.Invalid, "the archive has more than %d GB", uploadMost>>30)
	}
	if err != nil {
		s.fail(w, r, err)
		return
	}
	w.WriteHeader(http.StatusOK)
}

// originKey is the context's key of the address by which a client came.
type originKey struct{}

// originOf is the address by which a client came, for links back here.
func originOf(r *http.Request) string {
	scheme := "http"
	if r.TLS != nil || strings.EqualFold(r.Header.Get("X-Forwarded-Proto"), "https") {
		scheme = "https"
	}
	return scheme + "://" + r.Host
}

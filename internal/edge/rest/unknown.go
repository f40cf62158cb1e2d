package rest

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"reflect"
	"slices"
	"strings"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/api/rest/cayv1"
	"github.com/cay-run/cay/internal/near"
)

// A member that Cay's own routes do not know is refused: taken for nothing, a mistyped
// bound would be none. E2B's routes ignore such members, since its clients send some.

type bodyKey struct{}

// keepBody has the body of a request to one of Cay's own routes be there a second time.
func keepBody(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Body == nil || r.Body == http.NoBody || r.URL.Path == importRoute || isTree(r) {
			next.ServeHTTP(w, r)
			return
		}
		seen := &seenBody{ReadCloser: r.Body}
		r2 := r.WithContext(context.WithValue(r.Context(), bodyKey{}, seen))
		r2.Body = seen
		next.ServeHTTP(w, r2)
	})
}

// seenBody keeps what is read of a body, which [server.guard] bounds.
type seenBody struct {
	io.ReadCloser
	text bytes.Buffer
}

func (b *seenBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if b.text.Len() <= maxBody {
		b.text.Write(p[:n])
	}
	return n, err
}

// knowMembers refuses a body with a member that its operation does not know.
func knowMembers(next cayv1.StrictHandlerFunc, _ string) cayv1.StrictHandlerFunc {
	return func(ctx context.Context, w http.ResponseWriter, r *http.Request, request any) (any, error) {
		seen, _ := ctx.Value(bodyKey{}).(*seenBody)
		body := reflect.Indirect(reflect.ValueOf(request)).FieldByName("Body")
		if seen == nil || !body.IsValid() || body.Kind() == reflect.Interface {
			return next(ctx, w, r, request)
		}
		var members any
		if json.Unmarshal(seen.text.Bytes(), &members) == nil { // else the decoder has refused it, or it is no object
			if err := unknown(members, body.Type(), ""); err != nil {
				return nil, err
			}
		}
		return next(ctx, w, r, request)
	}
}

var unmarshaler = reflect.TypeFor[json.Unmarshaler]()

// unknown returns an error for a member of a JSON value that its type does not have. Where
// is the value's own place.
func unknown(value any, t reflect.Type, where string) error {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if reflect.PointerTo(t).Implements(unmarshaler) {
		return nil
	}
	switch value := value.(type) {
	case []any:
		if t.Kind() != reflect.Slice {
			return nil
		}
		for _, v := range value {
			if err := unknown(v, t.Elem(), where); err != nil {
				return err
			}
		}
	case map[string]any:
		for name, v := range value {
			of := t
			switch t.Kind() {
			case reflect.Map:
				of = t.Elem()
			case reflect.Struct:
				var err error
				if of, err = memberOf(t, name, where); err != nil {
					return err
				}
			default:
				return nil
			}
			if err := unknown(v, of, where+name+"."); err != nil {
				return err
			}
		}
	}
	return nil
}

// memberOf is the type of a struct's member, by its name in JSON, whose case is of no
// matter to encoding/json.
func memberOf(t reflect.Type, name, where string) (reflect.Type, error) {
	var names []string
	for i := range t.NumField() {
		known, _, _ := strings.Cut(t.Field(i).Tag.Get("json"), ",")
		if strings.EqualFold(known, name) {
			return t.Field(i).Type, nil
		}
		names = append(names, known)
	}
	slices.Sort(names)
	err := cay.Errorf(cay.Invalid, "%s%.80q: there is no such member", where, name)
	if like := near.Words(name, names); len(like) > 0 {
		return nil, err.WithHint("did you mean %s?", like[0])
	}
	return nil, err.WithHint("there are %s", strings.Join(names, ", "))
}

/* Arguments to payload and back: calls into pydantic_core, and a slow path in Python.

   An ``Encoder`` is ``ArgumentCodec.encode``, a ``Decoder`` is ``ArgumentCodec.decode``. They do
   the same as the Python functions of ``_plain_encoder`` and ``_plain_decoder``. */

#include "native.h"

#include <structmember.h>

typedef struct {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    PyObject *validate; /* values by name -> checked values; Decoder: payload -> values */
    PyObject *slow;     /* the whole conversion in Python, with messages for its errors */
    PyObject *names;    /* of the parameters; from here on, members of an Encoder only */
    PyObject *dump;     /* values by name -> payload */
    PyObject *large;    /* (args, kwargs, payload) -> payload, if it is over ``flat_bytes`` */
    Py_ssize_t flat_bytes;
} Codec;

static int
codec_traverse(Codec *codec, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(codec));
    Py_VISIT(codec->validate);
    Py_VISIT(codec->slow);
    Py_VISIT(codec->names);
    Py_VISIT(codec->dump);
    Py_VISIT(codec->large);
    return 0;
}

static int
codec_clear(Codec *codec)
{
    Py_CLEAR(codec->validate);
    Py_CLEAR(codec->slow);
    Py_CLEAR(codec->names);
    Py_CLEAR(codec->dump);
    Py_CLEAR(codec->large);
    return 0;
}

static void
codec_dealloc(Codec *codec)
{
    PyTypeObject *type = Py_TYPE(codec);
    PyObject_GC_UnTrack(codec);
    (void)codec_clear(codec);
    type->tp_free(codec);
    Py_DECREF(type);
}

/* Return whether the garbage collector has not cleared this codec; 0 with an error set. */
static int
is_whole(Codec *codec)
{
    if (codec->validate == NULL || codec->slow == NULL) {
        PyErr_SetString(PyExc_RuntimeError, "this codec is gone");
        return 0;
    }
    return 1;
}

/* Call the slow path for a ValueError, which becomes the context of new errors, as in
   ``except``. */
static PyObject *
go_slow(Codec *codec, PyObject *const *args, size_t count)
{
    if (!PyErr_ExceptionMatches(PyExc_ValueError) || !is_whole(codec)) return NULL;
    PyObject *error = take_error();
    PyObject *handled = PyErr_GetHandledException();
    PyErr_SetHandledException(error);
    PyObject *result = PyObject_Vectorcall(codec->slow, args, count, NULL);
    PyErr_SetHandledException(handled);
    Py_XDECREF(handled);
    Py_XDECREF(error);
    return result;
}

/* -- Decoder ----------------------------------------------------------------------------------- */

PyObject *
taskq_decode(PyObject *decoder, PyObject *payload, PyObject **slowly)
{
    Codec *codec = (Codec *)decoder;

    *slowly = NULL;
    if (!is_whole(codec)) return NULL;
    PyObject *values = PyObject_CallOneArg(codec->validate, payload);
    if (values == NULL) {
        *slowly = go_slow(codec, &payload, 1);
    }
    else if (!PyDict_Check(values)) {
        Py_CLEAR(values);
        PyErr_SetString(PyExc_TypeError, "a payload is decoded to a dict");
    }
    return values;
}

static PyObject *
decoder_call(PyObject *self, PyObject *const *args, size_t flags, PyObject *keywords)
{
    if (PyVectorcall_NARGS(flags) != 1 || keywords != NULL) {
        PyErr_SetString(PyExc_TypeError, "decode() takes a payload");
        return NULL;
    }
    PyObject *slowly;
    PyObject *values = taskq_decode(self, args[0], &slowly);
    if (values == NULL) return slowly;
    PyObject *none = PyTuple_New(0);
    PyObject *both = none == NULL ? NULL : PyTuple_Pack(2, none, values);
    Py_XDECREF(none);
    Py_DECREF(values);
    return both;
}

static PyObject *
decoder_new(PyTypeObject *type, PyObject *args, PyObject *keywords)
{
    static char *names[] = {"validate", "slow", NULL};
    PyObject *validate, *slow;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "OO:Decoder", names, &validate, &slow)) {
        return NULL;
    }
    Codec *codec = (Codec *)type->tp_alloc(type, 0);
    if (codec != NULL) {
        codec->vectorcall = decoder_call;
        codec->validate = Py_NewRef(validate);
        codec->slow = Py_NewRef(slow);
    }
    return (PyObject *)codec;
}

/* -- Encoder ----------------------------------------------------------------------------------- */

/* Return the arguments of a call by name; NULL without an error: use the slow path. */
static PyObject *
named(Codec *codec, PyObject *args, PyObject *kwargs)
{
    Py_ssize_t given = PyTuple_GET_SIZE(args), more = PyDict_GET_SIZE(kwargs);
    if (given == 0) return Py_NewRef(kwargs);
    if (given > PyTuple_GET_SIZE(codec->names)) return NULL;
    PyObject *values = PyDict_New();
    for (Py_ssize_t i = 0; values != NULL && i < given; i++) {
        PyObject *name = PyTuple_GET_ITEM(codec->names, i);
        if (PyDict_SetItem(values, name, PyTuple_GET_ITEM(args, i)) < 0) {
            Py_CLEAR(values);
        }
    }
    if (values != NULL && more > 0) {
        if (PyDict_Update(values, kwargs) < 0 || PyDict_GET_SIZE(values) != given + more) {
            Py_CLEAR(values);
        }
    }
    return values;
}

/* Return the payload of a call, like ``ArgumentCodec.encode``. */
PyObject *
taskq_encode(PyObject *encoder, PyObject *args, PyObject *kwargs)
{
    Codec *codec = (Codec *)encoder;
    PyObject *const both[] = {args, kwargs};
    PyObject *body = NULL;

    if (!is_whole(codec)) return NULL;
    PyObject *values = named(codec, args, kwargs);
    if (values == NULL) {
        return PyErr_Occurred() ? NULL : PyObject_Vectorcall(codec->slow, both, 2, NULL);
    }
    PyObject *checked = PyObject_CallOneArg(codec->validate, values);
    Py_DECREF(values);
    if (checked != NULL) {
        body = PyObject_CallOneArg(codec->dump, checked);
        Py_DECREF(checked);
    }
    if (body == NULL) return go_slow(codec, both, 2);
    if (PyBytes_CheckExact(body) && PyBytes_GET_SIZE(body) <= codec->flat_bytes) return body;
    PyObject *const all[] = {args, kwargs, body};
    PyObject *large = PyObject_Vectorcall(codec->large, all, 3, NULL);
    Py_DECREF(body);
    return large;
}

static PyObject *
encoder_call(PyObject *self, PyObject *const *args, size_t flags, PyObject *keywords)
{
    if (PyVectorcall_NARGS(flags) != 2 || keywords != NULL || !PyTuple_CheckExact(args[0])
        || !PyDict_CheckExact(args[1])) {
        PyErr_SetString(PyExc_TypeError, "encode() takes a tuple and a dict of arguments");
        return NULL;
    }
    return taskq_encode(self, args[0], args[1]);
}

static PyObject *
encoder_new(PyTypeObject *type, PyObject *args, PyObject *keywords)
{
    static char *names[] = {"names", "validate", "dump", "slow", "large", "flat_bytes", NULL};
    PyObject *parameters, *validate, *dump, *slow, *large;
    Py_ssize_t flat_bytes;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "O!OOOOn:Encoder", names, &PyTuple_Type,
                                     &parameters, &validate, &dump, &slow, &large, &flat_bytes)) {
        return NULL;
    }
    Codec *codec = (Codec *)type->tp_alloc(type, 0);
    if (codec != NULL) {
        codec->vectorcall = encoder_call;
        codec->names = Py_NewRef(parameters);
        codec->validate = Py_NewRef(validate);
        codec->dump = Py_NewRef(dump);
        codec->slow = Py_NewRef(slow);
        codec->large = Py_NewRef(large);
        codec->flat_bytes = flat_bytes;
    }
    return (PyObject *)codec;
}

/* -- the types --------------------------------------------------------------------------------- */

static PyMemberDef codec_members[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(Codec, vectorcall), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};

#define CODEC_SLOTS(doc, new)                                                                      \
    {                                                                                              \
        {Py_tp_doc, doc}, {Py_tp_new, new}, {Py_tp_dealloc, codec_dealloc},                        \
            {Py_tp_traverse, codec_traverse}, {Py_tp_clear, codec_clear},                          \
            {Py_tp_call, PyVectorcall_Call}, {Py_tp_members, codec_members}, {0, NULL},            \
    }

static PyType_Slot decoder_slots[] = CODEC_SLOTS("payload -> (args, kwargs)", decoder_new);
static PyType_Slot encoder_slots[] = CODEC_SLOTS("(args, kwargs) -> payload", encoder_new);

PyType_Spec taskq_decoder_spec = {
    .name = "taskq._native._plain.Decoder",
    .basicsize = sizeof(Codec),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL
             | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = decoder_slots,
};

PyType_Spec taskq_encoder_spec = {
    .name = "taskq._native._plain.Encoder",
    .basicsize = sizeof(Codec),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL
             | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = encoder_slots,
};

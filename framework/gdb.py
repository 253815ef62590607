# SPDX-License-Identifier: Apache-2.0
"""For gdb: `gdb -x framework/gdb.py PROGRAM` prints Tensors and Shapes readably and finds the sources.

    (gdb) p x          Tensor 'w' [2, 3] kFloat32 kND
    (gdb) tensor x     the same with the elements, shortened, on the program's stderr

Where x is found depends on the debug information of the program: the preset `dev` has all of it.
"""
import os

import gdb
import gdb.printing

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def shape_text(shape):
    return "[" + ", ".join(str(int(shape["dims_"]["_M_elems"][i]))
                           for i in range(int(shape["ndim_"]))) + "]"


def word(value):
    """kFloat32 of moegrad::Dtype::kFloat32."""
    return str(value).rsplit("::", 1)[-1]


class ShapePrinter:
    def __init__(self, value):
        self.value = value

    def to_string(self):
        return shape_text(self.value)


class TensorPrinter:
    def __init__(self, value):
        self.value = value

    def to_string(self):
        impl = self.value["impl_"]["_M_ptr"]
        if not int(impl):
            return "undefined Tensor"
        impl = impl.dereference()
        storage = impl["storage"]["_M_ptr"].dereference()
        name = storage["name_"]["_M_dataplus"]["_M_p"].string()
        parts = ["Tensor", f"'{name}'" if name else "", shape_text(impl["shape"]),
                 word(impl["dtype"]), word(impl["layout"])]
        if not int(storage["data_"]):
            parts.append("without bytes")
        return " ".join(part for part in parts if part)


printers = gdb.printing.RegexpCollectionPrettyPrinter("moegrad")
printers.add_printer("Shape", "^moegrad::Shape$", ShapePrinter)
printers.add_printer("Tensor", "^moegrad::Tensor$", TensorPrinter)
gdb.printing.register_pretty_printer(None, printers, replace=True)

class TensorCommand(gdb.Command):
    """tensor EXPRESSION: prints a moegrad::Tensor with its elements, by moegrad::dump."""

    def __init__(self):
        super().__init__("tensor", gdb.COMMAND_DATA, gdb.COMPLETE_EXPRESSION)

    def invoke(self, argument, from_tty):
        address = int(gdb.parse_and_eval(argument).address)
        dump = int(gdb.parse_and_eval("(long)&'moegrad::dump(moegrad::Tensor const&)'"))
        gdb.execute(f"call ((void (*)(long)) {dump})({address})")


TensorCommand()

# Line tables of optimized builds name sources from the root of the repository on: ops/linear.cpp.
gdb.execute(f"directory {ROOT}")
